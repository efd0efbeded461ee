"""The general path: Jacobian sums by vector-Jacobian products, batched over output coordinates.

It serves every section that no closed form knows, the global interaction basis (whose Jacobian runs
through the whole rest of the network), and the tests, as a reference that shares nothing with the closed
forms. Cost: one backward pass per output coordinate and output position, or, with R stochastic sources,
R backward passes per output coordinate.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from interbasis.base.devices import batch_sums, double
from interbasis.numerics.integration import Rule
from interbasis.numerics.linalg import symmetric_product

Function = Callable[[Tensor], Tensor]  # [n, T, c_in] -> [n, S, c_out]
Weights = tuple[Tensor, Tensor]
"""Weights of input positions [n, T] and output positions [n, S]: 1 for those that count in a sum, else 0."""


MAX_JACOBIAN_ELEMENTS = 2**21
"""Elements that the Jacobian rows held at once may have."""


def jacobian_rows(
    function: Function, u: Tensor, signs: Tensor | None = None, counted_outputs: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of the Jacobian, Σ_s w_s ∂function_s/∂u_t, for all output coordinates at once.

    Yields (weights [n, S], rows [c_out, n, T, c_in]). Exact (``signs=None``): one block per output
    position, its weights 1 there and 0 elsewhere. With sources φ [n, S, R]: one block per source, its
    weights the signs. Output positions whose ``counted_outputs`` [n, S] is 0 have no weight.
    """
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        output = function(u)  # [n, S, c_out]
    unit = torch.eye(output.shape[2], dtype=u.dtype, device=u.device)
    for weights in _sources(output, signs, counted_outputs).unbind(dim=2):
        yield weights, _pulled_back(output, [u], weights, unit)[0]


def moments(
    function: Function,
    outputs: slice,
    u: Tensor,
    metric: Tensor,
    signs: Tensor | None = None,
    counted: Weights | None = None,
) -> tuple[Tensor, Tensor]:
    """Σ N_ss [c_out, c_in] and Σ_st N_stᵀQN_st [c_in, c_in] over a batch; with sources, unbiased estimates.

    The function's outputs belong to the input positions ``outputs``. u [n, T, c_in], metric Q [c_out, c_out],
    signs [n, S, R]; over ``counted`` positions alone.
    """
    width = u.shape[2]
    local, gram = batch_sums(len(metric), width, like=u), batch_sums(width, width, like=u)
    sources = 1 if signs is None else signs.shape[2]
    for part in _parts(u, len(metric)):
        part_signs = None if signs is None else signs[part]
        counted_inputs, counted_outputs = (
            (None, None) if counted is None else (mask[part].to(u) for mask in counted)
        )
        for weights, rows in jacobian_rows(function, u[part], part_signs, counted_outputs):
            rows = rows if counted_inputs is None else rows * counted_inputs[..., None]
            local += torch.einsum("cnsi,ns->ci", rows[:, :, outputs], weights)
            weighted = metric @ rows.flatten(1)  # [c_out, n·T·c_in]
            gram += rows.reshape(-1, width).T @ weighted.reshape(-1, width)
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
    steps: Sequence[Callable[[Tensor], list[Tensor]]],
    f: Tensor,
    transform: Tensor,
    signs: Tensor | None = None,
    counted: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Σ JᵀCᵀCJ of the Jacobian from every stage of a chain but the last to its end, [width, width] each.

    A step takes f to [stage, next f]. One backward pass through the chain gives the rows of all stages at
    once. f [n, T, width], transform C [r, d], signs [n, S, R]; the sums are float64. ``counted`` [n, T] says
    for every stage and for the end which positions count, 1 or 0.
    """
    totals: list[Tensor] = []
    with torch.no_grad():
        stage, output = f[:1], f[:1]
        widest = 0
        for step in steps:
            stage, output = step(output)
            widest = max(widest, stage[0].numel(), output[0].numel())
    for part in _parts(f, len(transform), widest):
        with torch.enable_grad():
            stages, output = [], f[part].detach().requires_grad_()
            for step in steps:
                stage, output = step(output)
                stages.append(stage)
        masks = None if counted is None else [mask[part].to(f) for mask in counted]
        counted_outputs = None if masks is None else masks[-1]
        sources = _sources(output, None if signs is None else signs[part], counted_outputs)
        for weights in sources.unbind(dim=2):
            rows = _pulled_back(output, stages[:-1], weights, transform)
            if masks is not None:
                rows = tuple(row * mask[..., None] for row, mask in zip(rows, masks, strict=False))
            scale = 1 if signs is None else signs.shape[2]
            grams = [double(symmetric_product(row.flatten(0, 2))) / scale for row in rows]
            totals = [total + gram for total, gram in zip(totals, grams, strict=True)] if totals else grams
    return totals


def _pulled_back(
    output: Tensor, inputs: Sequence[Tensor], weights: Tensor, transform: Tensor
) -> tuple[Tensor, ...]:  # [r, n, T, width] each
    """Σ_s w_s C ∂output_s/∂input by every input, one backward pass for the rows of C [r, d] together."""
    cotangents = weights[None, :, :, None] * transform[:, None, None, :]  # [r, n, S, d]
    return torch.autograd.grad(
        output, inputs, cotangents, retain_graph=True, is_grads_batched=True, materialize_grads=True
    )


def _sources(
    output: Tensor, signs: Tensor | None, counted_outputs: Tensor | None
) -> Tensor:  # -> [n, S, blocks]
    """Weights of the output positions, one backward pass per block: the signs, or each position by itself.

    output [n, S, c_out]; 0 for positions whose ``counted_outputs`` [n, S] is.
    """
    if signs is None:
        n, outputs, _ = output.shape
        signs = torch.eye(outputs, dtype=output.dtype, device=output.device).expand(n, -1, -1)
    return signs if counted_outputs is None else signs * counted_outputs[..., None]


def _parts(u: Tensor, coordinates: int, widest: int = 0) -> Iterator[slice]:
    """Runs of samples whose Jacobian rows fit into the budget, at u and where a sample is widest."""
    samples = max(1, MAX_JACOBIAN_ELEMENTS // max(1, coordinates * max(widest, u[0].numel())))
    for start in range(0, len(u), samples):
        yield slice(start, start + samples)
