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
from interbasis.network.network import Network
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
    top = mass.flatten().topk(min(max_nodes, mass.numel()))  # without those that have no influence
    chosen = top.indices[top.values > 0].sort().values  # in the order of positions and features
    nodes = NodeSet(chosen % mass.shape[1] + start, chosen // mass.shape[1])
    selected = incoming.at(nodes)
    sizes = torch.cat([selected.total, errors], dim=1).abs()  # [k, K + T]
    sums, tiny = sizes.sum(1), torch.finfo(sizes.dtype).tiny
    covered = (weights * sums / totals.clamp_min(tiny)).sum() / weights.sum()
    shares = sizes / sums[:, None].clamp_min(tiny)
    influence, error_influence = (weights @ shares).split([len(nodes), len(source.f)])
    return WalkStep(
        layer, nodes, influence, error_influence, selected, errors, constants, shares, covered.item()
    )


def walk(
    network: Network, states: Sequence[LayerState], incoming: IncomingEdges, rule: Rule, max_nodes: int
) -> Iterator[WalkStep]:
    """All steps, from the layer that the target is read from to the first; ``incoming`` are its edges."""
    last = len(states) - 1
    step = step_back(last, incoming, states[last].f.new_ones(1), max_nodes)
    yield step
    for layer in range(last - 1, -1, -1):
        incoming = edges_into(network.sections[layer], states[layer], states[layer + 1], step.nodes, rule)
        step = step_back(layer, incoming, step.influence, max_nodes)
        yield step


def prune(steps: Sequence[WalkStep], node_threshold: float, edge_threshold: float) -> list[Tensor]:
    """Select the fewest nodes with a share of all influence, then the fewest edges among them likewise.

    Steps run from the target to the first layer, as a walk gives them. Returns a mask [k, K + T] of the edges
    of each that are left.

    Raises:
        InterbasisError: Nothing is left.
    """
    influences = [torch.cat([step.influence, step.errors]) for step in steps]
    chosen = holding(influences, node_threshold)
    chosen[-1][: len(steps[-1].nodes)] = True
    edges = holding(_edge_scores(steps, chosen), edge_threshold)
    pairs = list(pairwise(edges))
    for after, before in pairs:  # nodes from which no edge leads on
        before &= after.any(0)[: len(before), None]
    for after, before in reversed(pairs):  # then those that none leads into
        after[:, : len(before)] &= before.any(1)
    if not edges[0].any():
        raise InterbasisError(
            "no path from the inputs to the target holds enough influence at node_threshold "
            f"{node_threshold} and edge_threshold {edge_threshold}; raise them"
        )
    return edges


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


def holding(values: Sequence[Tensor], share: float) -> list[Tensor]:
    """Masks of the fewest values that add up to a share of all; values of 0 are never among them."""
    flat = torch.cat([part.flatten() for part in values])
    order = flat.argsort(descending=True, stable=True)
    ranked = flat[order]
    # rounding of the sum must not make the whole need less than all of it
    wanted = torch.inf if share == 1 else share * flat.sum()
    mask = torch.zeros_like(flat, dtype=torch.bool)
    mask[order] = (ranked.cumsum(0) - ranked < wanted) & (ranked > 0)
    parts = mask.split([part.numel() for part in values])
    return [part.view_as(like).clone() for part, like in zip(parts, values, strict=True)]
