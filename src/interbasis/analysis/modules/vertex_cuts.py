"""Minimum vertex cuts: the fewest features whose removal cuts all paths between two modules.

By Menger's theorem that is the largest number of paths from one module to the other that share no feature,
found by maximum flow: every feature may be passed once, every edge as often as one likes. Features of the two
modules may be removed too, since an edge may lead straight from one to the other.
"""

from itertools import combinations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from interbasis.analysis.modules.weighted_graph import WeightedGraph
from interbasis.analysis.stages.modules import ModulesResult, VertexCut
from interbasis.graph.interaction_graph import InteractionGraph


def vertex_cuts(graph: InteractionGraph, modules: ModulesResult) -> tuple[VertexCut, ...]:
    """Find the minimum vertex cuts between all pairs of modules; edges above ε count.

    Args:
        graph: The graph that the modules were found in.
        modules: A partition from `find_modules`.

    Returns:
        The fewest features that separate each pair.
    """
    weighted = WeightedGraph.from_graph(graph, list(modules.epsilons.values()))
    labels = np.concatenate(modules.assignment)
    return tuple(_cut(weighted, labels, pair) for pair in combinations(range(modules.modules), 2))


def _cut(weighted: WeightedGraph, labels: np.ndarray, pair: tuple[int, int]) -> VertexCut:
    """The smallest cut, of several the nearest to the second module: its nodes' ends still reach the sink.

    Node k is the arc k → n + k of capacity 1, source 2n and sink 2n + 1; no more than n paths share no node,
    so n + 1 is as good as infinite.
    """
    nodes, n = weighted.connected, len(weighted.connected)
    a, b = weighted.ends
    first, second = (np.flatnonzero(labels[nodes] == module) for module in pair)
    source, sink = np.full(len(first), 2 * n), np.full(len(second), 2 * n + 1)
    rows = np.concatenate([np.arange(n), n + a, n + b, source, n + second]).astype(np.int32)  # for scipy 1.14
    columns = np.concatenate([n + np.arange(n), b, a, first, sink]).astype(np.int32)
    capacities = np.where(np.arange(len(rows)) < n, 1, n + 1).astype(np.int32)
    arcs = csr_array((capacities, (rows, columns)), shape=(2 * n + 2, 2 * n + 2))
    left = csr_array(arcs - maximum_flow(arcs, 2 * n, 2 * n + 1).flow)
    left.eliminate_zeros()
    reaching = np.zeros(2 * n + 2, dtype=bool)
    reaching[breadth_first_order(csr_array(left.T), 2 * n + 1, return_predecessors=False)] = True
    features = []
    for node in nodes[~reaching[:n] & reaching[n : 2 * n]].tolist():
        layer = int(np.searchsorted(weighted.offsets, node, side="right")) - 1
        features.append((weighted.layers[layer], node - weighted.offsets[layer]))
    return VertexCut(modules=pair, features=tuple(features))
