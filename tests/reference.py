"""The definitions of method and paper, spelled out with full per-sample Jacobians.

Independent of everything in interbasis but `Section.__call__`: forward passes and `torch.func.jacrev`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from interbasis.graph.layer_basis import LayerBasis

Function = Callable[[Tensor], Tensor]


def jacobians(function: Function, f: Tensor) -> Tensor:  # [n, T, d_in] -> [n, S, d_out, T, d_in]
    return torch.stack([torch.func.jacrev(lambda x: function(x[None])[0])(x) for x in f])


def looped_jacobians(function: Function, f: Tensor) -> Tensor:
    """The same by one plain backward pass after the other, as functions that know no batches of them need."""
    return torch.stack([torch.autograd.functional.jacobian(lambda x: function(x[None])[0], x) for x in f])


def jacobian_gram(
    function: Function,
    f: Tensor,
    transform: Tensor,
    seen: Tensor | None = None,
    told: Tensor | None = None,
    jacobians: Callable[..., Tensor] = jacobians,
) -> Tensor:  # [d_in, d_in]
    """(1/nT) Σ_x Σ_st Σ_i (∂f̂_is/∂f_jt)(∂f̂_is/∂f_j't), T the number of input positions.

    Over input positions t with seen [n, T] and output positions s with told [n, S]; None is all of them.
    """
    seen, told = _masks(function, f, seen, told)
    J = torch.einsum("ro,nsotj->nsrtj", transform, jacobians(function, f))
    return torch.einsum("nsrtj,nsrtk,nt,ns->jk", J, J, seen, told) / seen.sum()


def _masks(function: Function, f: Tensor, seen: Tensor | None, told: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both as numbers 0 and 1."""
    seen = torch.ones(f.shape[:2]) if seen is None else seen
    told = torch.ones(function(f).shape[:2]) if told is None else told
    return seen.to(f), told.to(f)


def attributions(
    section: Function,
    f: Tensor,
    source: LayerBasis,
    target: LayerBasis,
    *,
    nodes: Sequence[float] = (1.0,),
    weights: Sequence[float] = (1.0,),
    seen: Tensor | None = None,
) -> Tensor:
    """A [n, S, r_out, r_in] = Σ_t f̂_jt Σ_k w_k ∂F̂_is/∂z_jt at z = α_k f̂, t over seen [n, T]."""
    features = f @ source.transform.T
    seen, _ = _masks(section, f, seen, None)

    def function(z: Tensor) -> Tensor:
        return section(z @ source.inverse.T) @ target.transform.T

    total = torch.zeros(())
    for node, weight in zip(nodes, weights, strict=True):
        total = total + weight * torch.einsum(
            "nsitj,ntj,nt->nsij", jacobians(function, node * features), features, seen
        )
    return total


def edges(
    section: Function,
    f: Tensor,
    source: LayerBasis,
    target: LayerBasis,
    *,
    nodes: Sequence[float] = (1.0,),
    weights: Sequence[float] = (1.0,),
    seen: Tensor | None = None,
    told: Tensor | None = None,
) -> Tensor:
    A = attributions(section, f, source, target, nodes=nodes, weights=weights, seen=seen)
    seen, told = _masks(section, f, seen, told)
    return (torch.einsum("nsij,ns->ij", A.square(), told) / seen.sum()).sqrt()


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖, in the largest entry."""
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-300)).item()
