"""Pruning of a walk by the rule of attribution graphs, over all layers at once.

Nodes are ranked by their influence on the target, e_target (A + A² + …), and the fewest that hold a share of
the sum over all layers are kept. Among these the absolute edges are normalised again, and edges are ranked by
share × influence of the node that they lead to. Features of the first layer are the tokens: none of them is
pruned as a node, and they require no edge into them. Nodes that are then left without an edge on to the
target, or without one into them, are removed.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.traces.walk import WalkStep
from interbasis.base.errors import InterbasisError


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
    pairs = list(itertools.pairwise(edges))
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
