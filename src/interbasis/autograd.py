"""The general path: Jacobian sums by vector-Jacobian products, batched over output coordinates.

It serves every section that no closed form knows, the global interaction basis (whose Jacobian runs
through the whole rest of the network), and the tests, as a reference that shares nothing with the closed
forms. Cost: one backward pass per output coordinate and output position, or, with R stochastic sources,
R backward passes per output coordinate.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from interbasis.integration import Rule

Function = Callable[[Tensor], Tensor]  # [n, T, c_in] -> [n, S, c_out]

BUDGET = 2**25
"""Elements that one batch of cotangents and gradients may hold."""


def jacobian_rows(
    function: Function, u: Tensor, signs: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of the Jacobian, Σ_s w_s ∂function_s/∂u_t, for all output coordinates at once.

    Yields (weights [n, S], rows [c_out, n, T, c_in]). Exact (``signs=None``): one block per output
    position, its weights 1 there and 0 elsewhere. With sources φ [n, S, R]: one block per source, its
    weights the signs.
    """
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        output = function(u)  # [n, S, c_out]
    n, outputs, width = output.shape
    if signs is None:
        signs = torch.eye(outputs, dtype=u.dtype, device=u.device).expand(n, -1, -1)
    unit = torch.eye(width, dtype=u.dtype, device=u.device)
    at_once = max(1, BUDGET // (output.numel() + u.numel()))
    for weights in signs.unbind(dim=2):
        rows: list[Tensor] = []
        for some in unit.split(at_once):
            cotangents = weights[None, :, :, None] * some[:, None, None, :]  # [some, n, S, c_out]
            rows += torch.autograd.grad(
                output, u, cotangents, retain_graph=True, is_grads_batched=True, materialize_grads=True
            )
        yield weights, torch.cat(rows)


def moments(
    function: Function, u: Tensor, metric: Tensor, signs: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Σ N_ss [c_out, c_in] and Σ_st N_stᵀQN_st [c_in, c_in] over a batch; with sources, unbiased estimates.

    u [n, T, c_in], metric Q [c_out, c_out], signs [n, S, R].
    """
    width = u.shape[2]
    local, gram = u.new_zeros(len(metric), width), u.new_zeros(width, width)
    sources = 1 if signs is None else signs.shape[2]
    for weights, rows in jacobian_rows(function, u, signs):
        outputs = weights.shape[1]
        local += torch.einsum("cnsi,ns->ci", rows[:, :, rows.shape[2] - outputs :], weights)
        weighted = metric @ rows.flatten(1)  # [c_out, n·T·c_in]
        gram += rows.reshape(-1, width).T @ weighted.reshape(-1, width)
    return local / sources, gram / sources


def attributions(
    function: Function, u: Tensor, f: Tensor, read: Tensor, rule: Rule, signs: Tensor | None = None
) -> Tensor:
    """Σ_t N̄_st A_j f_jt for every output position s (or signed sum over them) and input feature j.

    u [n, T, c_in], f [n, T, r], read [c_in, r] -> [c_out, n·S, r]; with signs [n, S, R], [c_out, n·R, r].
    """
    total = u.new_zeros(())
    for node, weight in zip(rule.nodes, rule.weights, strict=True):
        blocks = [
            torch.einsum("cntj,ntj->cnj", rows @ read, f)
            for _, rows in jacobian_rows(function, node * u, signs)
        ]
        total = total + weight * torch.stack(blocks, dim=2)  # [c_out, n, S or R, r]
    return total.flatten(1, 2)
