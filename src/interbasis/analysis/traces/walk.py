"""Influence on the target, layer by layer: the features that are followed, and the edges between them.

The absolute edges into a node are divided by their sum over features and errors, the constant left out. A
node's influence is that share times the target's own, summed over all paths, I = e_target (A + A² + …); in a
network of layers one walk back gives it. Of each layer the features with most influence are selected, and the
influence is divided among these and the errors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.traces.rows import EdgeBlock, IncomingEdges, LayerState, NodeSet, edges_into
from interbasis.network.network import Section
from interbasis.numerics.integration import Rule


@dataclass(frozen=True, eq=False)
class WalkStep:
    """The selected features of one layer, and their edges into those of the next, or into the target."""

    layer: int
    nodes: NodeSet
    influence: Tensor  # [K]
    errors: Tensor  # [T] influence of the dropped directions
    edges: EdgeBlock  # [k, K]
    error_edges: Tensor  # [k, T]
    constants: Tensor  # [k] edges from the constant, over all positions
    shares: Tensor  # [k, K + T] of the absolute edges, features first
    coverage: float
    non_error: Tensor  # [k] share of features in what comes into each node


def step_back(layer: int, incoming: IncomingEdges, weights: Tensor, max_nodes: int) -> WalkStep:
    """Step from nodes with influence ``weights`` [k] to the layer before."""
    source, errors = incoming.source, incoming.errors
    start = source.basis.first_feature
    mass = source.features.new_zeros(len(source.f), source.features.shape[1] - start)
    totals, constants = weights.new_zeros(len(weights)), weights.new_zeros(len(weights))
    for block, edges in incoming.blocks():
        if start:
            constants[block] = edges[:, :, 0].sum(1)
        size = edges[:, :, start:].abs_() if start else edges.abs_()
        totals[block] = size.sum((1, 2)) + errors[block].abs().sum(1)
        scale = weights[block] / totals[block].clamp_min(torch.finfo(totals.dtype).tiny)
        if incoming.positions is None:
            mass += torch.einsum("k,ktj->tj", scale, size)
        else:
            mass.index_add_(0, incoming.positions[block], scale[:, None] * size[:, 0])
    nodes = _largest(mass, max_nodes, start)
    selected = incoming.at(nodes)
    sizes = torch.cat([selected.total, errors], dim=1).abs()  # [k, K + T]
    sums, tiny = sizes.sum(1), torch.finfo(sizes.dtype).tiny
    covered = (weights * sums / totals.clamp_min(tiny)).sum() / weights.sum()
    shares = sizes / sums[:, None].clamp_min(tiny)
    influence = weights @ shares
    count = len(nodes)
    return WalkStep(
        layer, nodes, influence[:count], influence[count:], selected, errors, constants, shares,
        covered.item(), shares[:, :count].sum(1),
    )  # fmt: skip


def _largest(mass: Tensor, count: int, first: int) -> NodeSet:  # [T, r]
    """The features with most influence, in the order of positions and features; those with none left out."""
    top = mass.flatten().topk(min(count, mass.numel()))
    chosen = top.indices[top.values > 0].sort().values
    return NodeSet(chosen % mass.shape[1] + first, chosen // mass.shape[1])


def walk(
    sections: Sequence[Section],
    states: Sequence[LayerState],
    incoming: IncomingEdges,
    rule: Rule,
    max_nodes: int,
) -> Iterator[WalkStep]:
    """All steps, from the layer that the target is read from to the first; ``incoming`` are its edges."""
    last = len(states) - 1
    step = step_back(last, incoming, states[last].f.new_ones(1), max_nodes)
    yield step
    for layer in range(last - 1, -1, -1):
        incoming = edges_into(sections[layer], states[layer], states[layer + 1], step.nodes, rule)
        step = step_back(layer, incoming, step.influence, max_nodes)
        yield step
