"""Random graphs with a given graph's degrees: the null model of modularity.

Pairs of edges of one section swap their targets, (a → b, c → d) ⇝ (a → d, c → b), unless such an edge is
there already. So every node keeps its number of edges to either side; weights stay with the sources' ends,
and every source keeps its strength. Many swaps are proposed at once, each edge in one of them at most.
"""

from dataclasses import replace

import numpy as np

from interbasis.analysis.modules.weighted_graph import WeightedGraph

ROUNDS = 40
"""Proposals per edge: enough for the graph to forget where it began."""


def rewired(graph: WeightedGraph, generator: np.random.Generator) -> WeightedGraph:
    """One random graph."""
    targets = graph.targets.copy()
    for section in np.unique(graph.sections):
        here = np.flatnonzero(graph.sections == section)
        targets[here] = _swapped(graph.sources[here], targets[here], generator)
    return replace(graph, targets=targets)


def _swapped(sources: np.ndarray, targets: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    nodes = int(max(sources.max(), targets.max())) + 1
    targets = targets.copy()
    for _ in range(ROUNDS):
        order = generator.permutation(len(sources))
        half = len(order) // 2
        one, two = order[:half], order[half : 2 * half]
        proposed = np.concatenate([sources[one] * nodes + targets[two], sources[two] * nodes + targets[one]])
        taken = np.isin(proposed, sources * nodes + targets)
        _, inverse, counts = np.unique(proposed, return_inverse=True, return_counts=True)
        free = ~(taken | (counts[inverse] > 1))
        accepted = free[:half] & free[half:]
        a, b = one[accepted], two[accepted]
        targets[a], targets[b] = targets[b], targets[a]
    return targets
