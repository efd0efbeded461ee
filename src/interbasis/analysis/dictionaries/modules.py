"""Modules of a graph between dictionaries: Leiden over its strongest edges."""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from interbasis.analysis.dictionaries.ablation import DictionaryAblation
from interbasis.analysis.modules.modules import find_modules
from interbasis.analysis.modules.weighted_graph import CARRIED_SHARE, WeightedGraph
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.base.errors import InterbasisError
from interbasis.dictionaries.graph import DictionaryGraph

if TYPE_CHECKING:
    from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace

MAX_EDGES = 20_000
"""Edges of a pair that are grouped, the strongest."""


def dictionary_modules(
    workspace: "DictionaryWorkspace", resolution: float, seed: int, null_graphs: int, cross_check: bool
) -> ModulesResult:
    """Group the features of all dictionaries into modules, and store the partition.

    An edge weighs log(Ê/ε), ε being the smallest edge required where all pairs have been ablated; without
    that, the edges that carry 99 % of Ê² count, at most 20,000 of a pair.

    Raises:
        InterbasisError: There are no edges, or leidenalg is asked for and not installed.
    """
    graph, ablation = workspace.graph, workspace.stored(DictionaryAblation)
    required = {} if ablation is None else {name: pair.count for name, pair in ablation.pairs.items()}
    counts = [required.get(place) for place in graph.places[:-1]]
    known = [count for count in counts if count is not None]
    weighted = weighted_graph(graph, known if len(known) == len(counts) else None)
    result = find_modules(
        weighted, resolution=resolution, seed=seed, null_graphs=null_graphs, cross_check=cross_check
    )
    workspace.store(result)
    return result


def weighted_graph(graph: DictionaryGraph, counts: Sequence[int] | None) -> WeightedGraph:
    """Make one weighted graph of the strongest edges of every pair; ``counts`` of them, or by their share.

    Raises:
        InterbasisError: There are no edges.
    """
    offsets = tuple(accumulate((layer.features for layer in graph.header.layers), initial=0))
    parts, epsilons = [], []
    for k, edges in enumerate(graph.edges):
        rms = edges.rms.double().numpy()
        shares = np.cumsum(rms**2) / max((rms**2).sum(), 1e-300)
        kept = int((shares < CARRIED_SHARE).sum()) + 1 if counts is None else counts[k]
        kept = min(kept, len(rms) - 1, MAX_EDGES)
        epsilons.append(float(rms[kept]) if kept >= 0 else 0.0)
        if kept > 0:
            weights = np.log(rms[:kept] / epsilons[-1])
            used = weights > 0
            ends = (edges.source[:kept].numpy() + offsets[k], edges.target[:kept].numpy() + offsets[k + 1])
            parts.append(
                (*(end[used].astype(np.int64) for end in ends), weights[used], np.full(used.sum(), k))
            )
    if not parts or not sum(len(part[0]) for part in parts):
        raise InterbasisError("the graph has too few edges to group")
    sources, targets, weights, sections = map(np.concatenate, zip(*parts, strict=True))
    return WeightedGraph(
        sources, targets, weights, sections, offsets, tuple(graph.places), tuple(epsilons), counts is not None
    )
