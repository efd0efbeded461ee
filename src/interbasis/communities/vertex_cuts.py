"""How well modules are separated: the fewest features whose removal cuts all paths between two of them.

By Menger's theorem that is the largest number of paths from one module to the other that share no feature,
found by maximum flow: every feature may be passed once, every edge as often as one likes. Features of the two
modules may be removed too, since an edge may lead straight from one to the other.
"""

from dataclasses import dataclass
from itertools import combinations

import networkx as nx
import numpy as np

from interbasis.communities.modules import Modules
from interbasis.communities.weighted_graph import WeightedGraph
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.runtime.errors import InterbasisError


@dataclass(frozen=True)
class Cut:
    """The fewest features that separate two modules."""

    modules: tuple[int, int]
    features: tuple[tuple[str, int], ...]
    """(layer, feature) of each."""

    @property
    def size(self) -> int:
        return len(self.features)


def vertex_cuts(
    graph: InteractionGraph, modules: Modules, pairs: list[tuple[int, int]] | None = None
) -> list[Cut]:
    """Minimum vertex cuts between pairs of modules; edges above ε count.

    Args:
        graph: The graph that the modules were found in.
        modules: What `find_modules` returned.
        pairs: Pairs of modules; default: all pairs.

    Returns:
        The fewest features that separate each pair.

    Raises:
        InterbasisError: A pair is not two different modules of the partition.
    """
    weighted = WeightedGraph.of(graph, modules.epsilons)
    labels = np.concatenate(modules.assignment)
    for pair in pairs or []:
        if len(set(pair)) != 2 or not all(0 <= module < modules.count for module in pair):
            raise InterbasisError(f"expected two different modules below {modules.count}, received {pair}")
    wanted = list(combinations(range(modules.count), 2)) if pairs is None else pairs
    return [_cut(weighted, labels, modules, pair) for pair in wanted]


def _cut(weighted: WeightedGraph, labels: np.ndarray, modules: Modules, pair: tuple[int, int]) -> Cut:
    flow = nx.DiGraph()
    for node in weighted.connected.tolist():
        flow.add_edge(("in", node), ("out", node), capacity=1)
        if labels[node] == pair[0]:
            flow.add_edge("source", ("in", node))
        elif labels[node] == pair[1]:
            flow.add_edge(("out", node), "sink")
    for a, b in zip(weighted.sources.tolist(), weighted.targets.tolist(), strict=True):
        flow.add_edge(("out", a), ("in", b))
        flow.add_edge(("out", b), ("in", a))
    _, (reached, _) = nx.minimum_cut(flow, "source", "sink")
    nodes = [n for n in weighted.connected.tolist() if ("in", n) in reached and ("out", n) not in reached]
    return Cut(pair, tuple(_named(node, weighted, modules) for node in nodes))


def _named(node: int, weighted: WeightedGraph, modules: Modules) -> tuple[str, int]:
    layer = int(np.searchsorted(weighted.offsets, node, side="right")) - 1
    return modules.layers[layer], node - weighted.offsets[layer]
