"""Influence on the target, layer by layer: the features that are followed, and the edges between them.

The absolute edges into a node are divided by their sum over features and errors, the constant left out. A
node's influence is that share times the target's own, summed over all paths, I = e_target (A + A² + …); in a
network of layers one walk back gives it. Of each layer the features with most influence are selected, and the
influence is divided among these and the errors.

Pruning follows the rule of attribution graphs, over all layers at once. Nodes are ranked by their influence
on the target, and the fewest that hold a share of the sum over all layers are kept. Among these the absolute
edges are normalised again, and edges are ranked by share × influence of the node that they lead to. Features
of the first layer are the tokens: none of them is pruned as a node, and they require no edge into them. Nodes
that are then left without an edge on to the target, or without one into them, are removed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from interbasis.analysis.traces.rows import EdgeBlock, IncomingEdges, LayerState, NodeSet, edges_into
from interbasis.base.errors import InterbasisError
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


@dataclass(frozen=True, eq=False)
class StepMasks:
    """Nodes, errors and edges of one step that pruning leaves."""

    nodes: Tensor  # [K] bool
    errors: Tensor  # [T] bool
    edges: Tensor  # [k, K + T] bool, features first


def prune(steps: Sequence[WalkStep], node_threshold: float, edge_threshold: float) -> list[StepMasks]:
    """Select the fewest nodes with a share of all influence, then the fewest edges among them likewise.

    Steps run from the target to the first layer, as a walk gives them.

    Raises:
        InterbasisError: Nothing is left.
    """
    influences = [torch.cat([step.influence, step.errors]) for step in steps]
    chosen = _split(holding(torch.cat(influences), node_threshold), influences)
    chosen[-1][: len(steps[-1].nodes)] = True
    scores = _edge_scores(steps, chosen)
    edges = _split(holding(torch.cat([score.flatten() for score in scores]), edge_threshold), scores)
    _remove_dead_ends(edges)
    if not edges[0].any():
        raise InterbasisError(
            "no path from the inputs to the target holds enough influence at node_threshold "
            f"{node_threshold} and edge_threshold {edge_threshold}; raise them"
        )
    return [
        StepMasks(mask.any(0)[: len(step.nodes)], mask.any(0)[len(step.nodes) :], mask)
        for step, mask in zip(steps, edges, strict=True)
    ]


def _edge_scores(steps: Sequence[WalkStep], chosen: Sequence[Tensor]) -> list[Tensor]:  # [k, K + T] each
    """Share among the edges of chosen nodes, times the influence that the target of the edge then has."""
    scores, weights = [], steps[0].influence.new_ones(1)
    reached = torch.ones(1, dtype=torch.bool, device=weights.device)
    for step, nodes in zip(steps, chosen, strict=True):
        shares = step.shares * (reached[:, None] & nodes)
        shares = shares / shares.sum(1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)
        scores.append(weights[:, None] * shares)
        count = len(step.nodes)
        weights, reached = scores[-1].sum(0)[:count], nodes[:count]
    return scores


def _remove_dead_ends(edges: Sequence[Tensor]) -> None:
    """Clear, in place, the edges of nodes from which none leads on, then of those that none leads into."""
    pairs = list(pairwise(edges))
    for after, before in pairs:
        before &= after.any(0)[: len(before), None]
    for after, before in reversed(pairs):
        after[:, : len(before)] &= before.any(1)


def _split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape).clone() for part, tensor in zip(parts, like, strict=True)]


def holding(values: Tensor, share: float) -> Tensor:
    """The fewest values that add up to a share of all, as a mask; values of 0 are never among them."""
    order = values.flatten().argsort(descending=True, stable=True)
    ranked = values.flatten()[order]
    before = ranked.cumsum(0) - ranked
    mask = torch.zeros(values.numel(), dtype=torch.bool, device=values.device)
    # rounding of the sum must not make the whole need less than all of it
    wanted = torch.inf if share == 1 else share * values.sum()
    mask[order] = (before < wanted) & (ranked > 0)
    return mask.view(values.shape)
