"""A penalty on the Jacobian between dictionaries of neighbouring layers (Farnik et al. 2025), in closed form.

Between the layers lies F(y) = P y + B act(A y + a) with y [d] and F(y) [d′]. With features z [K] that are
decoded by D [K, d] and b [d], and target features that are read by E [K′, d′], the Jacobian of the target's
pre-activations at a token, of active features alone, is

    J = E_i (P + B diag(φ) A) D_jᵀ  [k′, k],      φ = act′(A ŷ + a) [m],  ŷ = Dᵀz + b,

and the penalty is the mean of |J_ij| over tokens and entries. With S = sign(J)/(tokens · k′ · k),
Q = E B [K′, m], R = D Aᵀ [K, m] and N = P Dᵀ,

    ∂E = (Σ S_ij φ∘R_j) Bᵀ + Σ S_ij N_j,     ∂D = (Σ S_ij φ∘Q_i) A + Σ S_ij E_i P + z ∂ŷᵀ,
    ∂ŷ = Aᵀ(act″ ∘ Σ S_ij Q_i∘R_j),          ∂b = Σ ∂ŷ,        ∂z = D ∂ŷ.

Sparse edges between layers are LIB's second aim; the penalty makes dictionaries that have them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.sparse_codes import SparseCode
from interbasis.dictionaries.streams import StreamPlace
from interbasis.network.cores import Elementwise
from interbasis.network.network import Network, Section


@dataclass(frozen=True, eq=False)
class PointwiseMap:
    """F(y) = P y + B act(A y + a) between two streams."""

    skip: Tensor  # P [d′, d]
    read: Tensor  # A [m, d]
    bias: Tensor  # a [m]
    write: Tensor  # B [d′, m]
    activation: nn.Module

    @classmethod
    def from_network(cls, network: Network, source: StreamPlace, target: StreamPlace) -> "PointwiseMap":
        """The section between the streams of two neighbouring node layers.

        Raises:
            InterbasisError: They are not neighbours, or no MLP lies between them.
        """
        section = network.sections[source.index] if target.index == source.index + 1 else None
        core = getattr(section, "core", None)
        if not isinstance(section, Section) or not isinstance(core, Elementwise):
            raise InterbasisError(
                f"a penalty on Jacobians requires an MLP between neighbouring node layers, received "
                f"{source.layer!r} and {target.layer!r}"
            )
        read, columns = section.read, source.columns
        bias = read[:, 0] if section.source.constant else torch.zeros_like(read[:, 0])
        rows = slice(target.columns.start, target.columns.stop)
        return cls(section.skip[rows, columns], read[:, columns], bias, section.write[rows], core.activation)

    def in_coordinates(
        self, back: Tensor, offset: Tensor, forward: Tensor
    ) -> "PointwiseMap":  # [d, d], [d], [d′, d′]
        """The map of y with x = back y + offset, to forward F(x); shifts of the target do not matter."""
        skip, bias = forward @ self.skip @ back, self.bias + self.read @ offset
        return PointwiseMap(skip, self.read @ back, bias, forward @ self.write, self.activation)

    def to(self, dtype: torch.dtype) -> "PointwiseMap":
        """The map in another dtype."""
        skip, read, bias, write = (t.to(dtype) for t in (self.skip, self.read, self.bias, self.write))
        return PointwiseMap(skip, read, bias, write, self.activation)

    def slopes(self, y: Tensor) -> tuple[Tensor, Tensor]:  # [tokens, d] -> [tokens, m], [tokens, m]
        """act′ and act″ at A y + a."""
        with torch.enable_grad():
            u = (y @ self.read.T + self.bias).detach().requires_grad_()
            (first,) = torch.autograd.grad(self.activation(u).sum(), u, create_graph=True)
            if not first.requires_grad:  # piecewise linear
                return first.detach(), torch.zeros_like(first)
            (second,) = torch.autograd.grad(first.sum(), u, materialize_grads=True)
        return first.detach(), second


class PenaltyGradients(NamedTuple):
    """The penalty and its gradients."""

    value: Tensor  # mean |J_ij|
    encoder: Tensor  # ∂E [K′, d′], of the target
    decoder: Tensor  # ∂D [K, d], of the source
    bias: Tensor  # ∂b [d]
    values: Tensor  # ∂z [entries]


@torch.no_grad()
def jacobian_penalty(
    section: PointwiseMap, z: SparseCode, decoder: Tensor, bias: Tensor, target: SparseCode, encoder: Tensor
) -> PenaltyGradients:
    """Mean of |J_ij| over tokens and active features, with its gradients.

    Args:
        section: The map between the streams.
        z: Active features of the source, as many at every token.
        decoder: D [K, d].
        bias: b [d].
        target: Active features of the target at the same tokens, as many at every token.
        encoder: E [K′, d′].

    Returns:
        The penalty and its gradients; features that are active are held.
    """
    tokens = len(z.token_starts)
    sources, targets = z.features.view(tokens, -1), target.features.view(tokens, -1)
    y = z.times(decoder) + bias
    first, second = section.slopes(y)  # [tokens, m]
    Q, R = (encoder @ section.write)[targets], (decoder @ section.read.T)[sources]  # [tokens, k, m]
    N = decoder @ section.skip.T  # [K, d′]
    live = (target.values.view(tokens, -1, 1) > 0) & (z.values.view(tokens, 1, -1) > 0)
    J = (Q * first[:, None]) @ R.mT + encoder[targets] @ N[sources].mT  # [tokens, k′, k]
    S = torch.where(live, J.sign(), 0.0) / J.numel()
    to_targets, to_sources = (S @ R) * first[:, None], (S.mT @ Q) * first[:, None]
    curvature = second * (Q * (S @ R)).sum(1)  # act″ ∘ Σ S_ij Q_i ∘ R_j
    dy = curvature @ section.read
    dE = _sum_rows(targets, to_targets, len(encoder)) @ section.write.T
    dE += _sum_rows(targets, S @ N[sources], len(encoder))
    dD = _sum_rows(sources, to_sources, len(decoder)) @ section.read
    dD += _sum_rows(sources, S.mT @ encoder[targets], len(decoder)) @ section.skip
    dD += z.transposed_times(dy)
    dz = z.products(dy, decoder)
    return PenaltyGradients((J * S).sum(), dE, dD, dy.sum(0), dz)


def _sum_rows(indices: Tensor, rows: Tensor, count: int) -> Tensor:  # [n, k], [n, k, m] -> [count, m]
    total = rows.new_zeros(count, rows.shape[-1])
    return total.index_add_(0, indices.flatten(), rows.flatten(0, 1))
