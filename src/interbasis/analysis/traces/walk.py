"""Influence on the target, layer by layer: which features are followed, and what the edges between them are.

The absolute edges into a node are divided by their sum over features and errors, the constant left out. A
node's influence is that share times the target's own, summed over all paths, I = e_target (A + A² + …); in a
network of layers one walk back gives it. Of each layer the features with most influence are selected, and the
influence is divided among these and the errors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.traces.rows import EdgeBlock, LayerState, Places, Rows, rows_into
from interbasis.network.network import Section
from interbasis.numerics.integration import Rule


@dataclass(frozen=True, eq=False)
class Step:
    """The selected features of one layer, and their edges into those of the next, or into the target."""

    layer: int
    nodes: Places
    influence: Tensor  # [K]
    errors: Tensor  # [T] influence of the dropped directions
    edges: EdgeBlock  # [k, K]
    error_edges: Tensor  # [k, T]
    constants: Tensor  # [k] edges from the constant, over all positions
    shares: Tensor  # [k, K + T] of the absolute edges, features first
    coverage: float
    non_error: Tensor  # [k] share of features in what comes into each node


def step_back(layer: int, rows: Rows, weights: Tensor, max_nodes: int) -> Step:
    """From nodes with influence ``weights`` [k] to the layer before."""
    source, errors = rows.source, rows.errors
    start = source.basis.first_feature
    mass = source.features.new_zeros(len(source.f), source.features.shape[1] - start)
    totals, constants = weights.new_zeros(len(weights)), weights.new_zeros(len(weights))
    for some, block in rows.blocks():
        if start:
            constants[some] = block[:, :, 0].sum(1)
        size = block[:, :, start:].abs_() if start else block.abs_()
        totals[some] = size.sum((1, 2)) + errors[some].abs().sum(1)
        scale = weights[some] / totals[some].clamp_min(torch.finfo(totals.dtype).tiny)
        if rows.own is None:
            mass += torch.einsum("k,ktj->tj", scale, size)
        else:
            mass.index_add_(0, rows.own[some], scale[:, None] * size[:, 0])
    nodes = _largest(mass, max_nodes, start)
    edges = rows.at(nodes)
    both = torch.cat([edges.total, errors], dim=1).abs()  # [k, K + T]
    kept = both.sum(1)
    covered = (weights * kept / totals.clamp_min(torch.finfo(kept.dtype).tiny)).sum() / weights.sum()
    shares = both / kept[:, None].clamp_min(torch.finfo(kept.dtype).tiny)
    influence = weights @ shares
    count = len(nodes)
    return Step(
        layer, nodes, influence[:count], influence[count:], edges, errors, constants, shares,
        covered.item(), shares[:, :count].sum(1),
    )  # fmt: skip


def _largest(mass: Tensor, count: int, first: int) -> Places:  # [T, r]
    """The features with most influence, in the order of positions and features; those with none left out."""
    top = mass.flatten().topk(min(count, mass.numel()))
    chosen = top.indices[top.values > 0].sort().values
    return Places(chosen % mass.shape[1] + first, chosen // mass.shape[1])


def walk(
    sections: Sequence[Section], states: Sequence[LayerState], rows: Rows, rule: Rule, max_nodes: int
) -> Iterator[Step]:
    """All steps, from the layer that the target is made of to the first; ``rows`` are the target's edges."""
    last = len(states) - 1
    step = step_back(last, rows, states[last].f.new_ones(1), max_nodes)
    yield step
    for layer in range(last - 1, -1, -1):
        into = rows_into(sections[layer], states[layer], states[layer + 1], step.nodes, rule)
        step = step_back(layer, into, step.influence, max_nodes)
        yield step
