"""How sparse interactions are, without a threshold and without ablating anything.

Each output feature's edges are divided by their norm, e_ij = Ê_ij / ‖Ê_i‖, so that features of different
scale count alike; edges of the constant are left out. Per section:

    participation  mean over i of (Σ_j e²)² / Σ_j e⁴: how many inputs an output feature effectively has
    gini, hoyer    inequality of all e_ij: 0 if all are equal, towards 1 if few are all there is
    share_above    part of the e_ij above 0.5, 1, 2, 4 %
    kurtosis       of all e_ij about 0, E[e⁴] / E[e²]²: 1 if all are equal, large if a few stand out.
"""

import math

import torch
from torch import Tensor

from interbasis.analysis.ablation.records import Sparsity
from interbasis.graph.interaction_graph import InteractionGraph

LEVELS = (0.005, 0.01, 0.02, 0.04)


def interaction_sparsity(graph: InteractionGraph) -> list[Sparsity]:
    """Measures of every section of a graph, in the network's order."""
    sections = []
    for k in range(len(graph.edges)):
        source, target = graph.layers[k], graph.layers[k + 1]
        sections.append(_measure(source.name, target.name, normalised(graph.inner_edges(k).double())))
    return sections


def normalised(edges: Tensor) -> Tensor:  # [r_out, r_in] -> [rows that are not 0, r_in]
    norms = edges.norm(dim=1, keepdim=True)
    return (edges / norms)[norms[:, 0] > 0]


def _measure(source: str, target: str, e: Tensor) -> Sparsity:
    values = e.flatten().sort().values
    count = len(values)
    if not count:
        return Sparsity(
            source=source,
            target=target,
            participation=math.nan,
            gini=math.nan,
            hoyer=math.nan,
            share_above=(math.nan,) * len(LEVELS),
            kurtosis=math.nan,
        )
    ranks = torch.arange(1, count + 1, dtype=torch.float64)
    squares = values.square()
    spread = count**0.5 - (values.sum() / squares.sum().sqrt()).item()
    return Sparsity(
        source=source,
        target=target,
        participation=(1 / e.pow(4).sum(1)).mean().item(),
        gini=((2 * ranks - count - 1) @ values / (count * values.sum())).item(),
        hoyer=spread / (count**0.5 - 1) if count > 1 else 1.0,
        share_above=tuple((values > level).double().mean().item() for level in LEVELS),
        kurtosis=(squares.square().mean() / squares.mean().square()).item(),
    )
