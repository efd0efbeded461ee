"""The general path: Jacobian sums by vector-Jacobian products, batched over output coordinates.

It serves every section that no closed form knows, the global interaction basis (whose Jacobian runs
through the whole rest of the network), and the tests, as a reference that shares nothing with the closed
forms. Cost: one backward pass per output coordinate and output position, or, with R stochastic sources,
R backward passes per output coordinate.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from interbasis.integration import Rule
from interbasis.linalg import symmetric_product

Function = Callable[[Tensor], Tensor]  # [n, T, c_in] -> [n, S, c_out]

BUDGET = 2**21
"""Elements that the Jacobian rows held at once may have."""


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
    for weights in signs.unbind(dim=2):
        cotangents = weights[None, :, :, None] * unit[:, None, None, :]  # [c_out, n, S, c_out]
        (rows,) = torch.autograd.grad(
            output, u, cotangents, retain_graph=True, is_grads_batched=True, materialize_grads=True
        )
        yield weights, rows


def moments(
    function: Function, u: Tensor, metric: Tensor, signs: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Σ N_ss [c_out, c_in] and Σ_st N_stᵀQN_st [c_in, c_in] over a batch; with sources, unbiased estimates.

    u [n, T, c_in], metric Q [c_out, c_out], signs [n, S, R].
    """
    width = u.shape[2]
    local, gram = torch.zeros(2, dtype=torch.float64, device=u.device)
    sources = 1 if signs is None else signs.shape[2]
    for part in _parts(u, len(metric)):
        for weights, rows in jacobian_rows(function, u[part], None if signs is None else signs[part]):
            first = u.shape[1] - weights.shape[1]
            local = local + torch.einsum("cnsi,ns->ci", rows[:, :, first:], weights)
            weighted = metric @ rows.flatten(1)  # [c_out, n·T·c_in]
            gram = gram + rows.reshape(-1, width).T @ weighted.reshape(-1, width)
    return local / sources, gram / sources


def attributions(
    function: Function, u: Tensor, f: Tensor, read: Tensor, rule: Rule, signs: Tensor | None = None
) -> Tensor:
    """Σ_t N̄_st A_j f_jt for every output position s (or signed sum over them) and input feature j.

    u [n, T, c_in], f [n, T, r], read [c_in, r] -> [c_out, n·S, r]; with signs [n, S, R], [c_out, n·R, r].
    """
    with torch.no_grad():
        coordinates = function(u[:1]).shape[2]
    parts = []
    for part in _parts(u, coordinates):
        total = u.new_zeros(())
        for node, weight in zip(rule.nodes, rule.weights, strict=True):
            blocks = [
                torch.einsum("cntj,ntj->cnj", rows @ read, f[part])
                for _, rows in jacobian_rows(function, node * u[part], None if signs is None else signs[part])
            ]
            total = total + weight * torch.stack(blocks, dim=2)  # [c_out, samples, S or R, r]
        parts.append(total.flatten(1, 2))
    return torch.cat(parts, dim=1)


def grams_to_end(
    steps: Sequence[Function], f: Tensor, transform: Tensor, signs: Tensor | None = None
) -> list[Tensor]:
    """Σ JᵀCᵀCJ of the Jacobian from every stage of a chain of functions to its end, [width, width] each.

    One backward pass through the chain gives the rows for all stages at once. f [n, T, width], transform
    C [r, d], signs [n, S, R].
    """
    totals: list[Tensor] = []
    for part in _parts(f, len(transform)):
        with torch.enable_grad():
            stages = [f[part].detach().requires_grad_()]
            for step in steps:
                stages.append(step(stages[-1]))
        output = stages.pop()  # [n, S, d]
        n, outputs, _ = output.shape
        if signs is None:
            weights = torch.eye(outputs, dtype=f.dtype, device=f.device).expand(n, -1, -1)
        else:
            weights = signs[part] / signs.shape[2] ** 0.5
        for weight in weights.unbind(dim=2):
            cotangents = weight[None, :, :, None] * transform[:, None, None, :]  # [r, n, S, d]
            rows = torch.autograd.grad(
                output, stages, cotangents, retain_graph=True, is_grads_batched=True, materialize_grads=True
            )
            found = [symmetric_product(row.flatten(0, 2)).double() for row in rows]
            totals = [total + gram for total, gram in zip(totals, found, strict=True)] if totals else found
    return totals


def _parts(u: Tensor, coordinates: int) -> Iterator[slice]:
    """Runs of samples whose Jacobian rows fit into the budget."""
    samples = max(1, BUDGET // max(1, coordinates * u.shape[1] * u.shape[2]))
    for start in range(0, len(u), samples):
        yield slice(start, start + samples)
