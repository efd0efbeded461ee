"""Which nodes and edges of a walk are kept: those that hold most of the influence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.traces.walk import Step


@dataclass(frozen=True, eq=False)
class Kept:
    """What pruning left of one step."""

    nodes: Tensor  # [K] bool
    errors: Tensor  # [T] bool
    edges: Tensor  # [k, K + T] bool, features first


def prune(steps: list[Step], node_threshold: float, edge_threshold: float) -> list[Kept]:
    """Of each layer the fewest nodes that hold a share of its influence, then the fewest edges likewise.

    Edges are ranked by their share of what comes into a kept node, times the node's influence. Nodes from
    which no edge leads on to the target are dropped.
    """
    kept: list[Kept] = []
    reached = torch.ones(1, dtype=torch.bool, device=steps[0].influence.device)
    weights = steps[0].influence.new_ones(1)
    for step in steps:
        both = torch.cat([step.influence, step.errors])
        nodes = holding(both, node_threshold)
        shares = step.shares * reached[:, None] * nodes
        shares = shares / shares.sum(1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)
        edges = holding(weights[:, None] * shares, edge_threshold)
        nodes = edges.any(0)
        count = len(step.nodes)
        reached = nodes[:count]
        weights = (weights @ shares)[:count] * reached
        kept.append(Kept(reached, nodes[count:], edges))
    return kept


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
