"""The edges of all layers as one undirected weighted graph, and random graphs with the same degrees.

In the null model of modularity, pairs of edges of one section swap their targets,
(a → b, c → d) ⇝ (a → d, c → b), unless such an edge is there already. So every node keeps its number of edges
to either side; weights stay with the sources' ends, and every source keeps its strength. Many swaps are
proposed at once, each edge in one of them at most.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph

CARRIED_SHARE = 0.99
"""Share of a section's Ê² whose edges count where no ε is named."""
ROUNDS = 40
"""Proposals of a swap per edge: enough for the graph to forget where it began."""


@dataclass(frozen=True, eq=False)
class WeightedGraph:
    """Edges above ε with weight log(Ê / ε). Nodes are features, numbered through all layers."""

    sources: np.ndarray
    """[edges] nodes of the earlier layer."""
    targets: np.ndarray
    weights: np.ndarray
    sections: np.ndarray
    """[edges] the section each belongs to."""
    offsets: tuple[int, ...]
    """First node of every layer, and the number of all nodes."""
    layers: tuple[str, ...]
    """Names of the layers."""
    epsilons: tuple[float, ...]
    """The smallest edge that counts, by section."""
    from_ablation: bool
    """Whether ablations found these, or they are those of the edges that carry 99 % of Ê²."""
    connected: np.ndarray = field(init=False)
    """Nodes that have an edge, ascending."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "connected", np.unique(np.concatenate([self.sources, self.targets])))

    @property
    def ends(self) -> np.ndarray:  # [2, edges]
        """Sources and targets as indices into ``connected``."""
        return np.searchsorted(self.connected, (self.sources, self.targets))

    @classmethod
    def from_graph(cls, graph: InteractionGraph, epsilons: Sequence[float] | None = None) -> "WeightedGraph":
        if not graph.edges:
            raise InterbasisError("the graph has no edges; build it with an edge_method")
        chosen = tuple(default_epsilons(graph) if epsilons is None else map(float, epsilons))
        filled = [bool((graph.inner_edges(k) > 0).any()) for k in range(len(graph.edges))]
        if not any(filled):
            raise InterbasisError(
                "no edge of the graph is above 0, so there is nothing to group; does the network give one "
                "answer to all inputs?"
            )
        if len(chosen) != len(filled) or not all(
            0 < e < math.inf for e, has_edges in zip(chosen, filled, strict=True) if has_edges
        ):
            raise InterbasisError(
                f"expected an ε above 0 for each of the {len(graph.edges)} sections, received {list(chosen)}"
            )
        offsets = tuple(accumulate((layer.features for layer in graph.layers), initial=0))
        parts = []
        for k in np.flatnonzero(filled).tolist():
            matrix = graph.edges[k].double().cpu().numpy()
            weights = np.log(np.maximum(matrix, chosen[k]) / chosen[k])
            weights[: graph.layers[k + 1].first_feature] = 0
            weights[:, : graph.layers[k].first_feature] = 0
            rows, columns = weights.nonzero()
            places = offsets[k] + columns, offsets[k + 1] + rows
            parts.append((*places, weights[rows, columns], np.full(len(rows), k)))
        sources, targets, weights, sections = map(np.concatenate, zip(*parts, strict=True))
        if not len(sources):
            raise InterbasisError(
                "no edge is larger than its section's ε, so there is nothing to group; ε is the smallest "
                "edge that the ablation requires, so ablate with a smaller tolerance"
            )
        names, from_ablation = tuple(graph.layer_names), epsilons is not None
        return cls(sources, targets, weights, sections, offsets, names, chosen, from_ablation)

    def rewire(self, generator: np.random.Generator) -> "WeightedGraph":
        """A random graph with these degrees."""
        targets = self.targets.copy()
        for section in np.unique(self.sections):
            here = self.sections == section
            targets[here] = _swap_targets(self.sources[here], targets[here], generator)
        return replace(self, targets=targets)


def _swap_targets(sources: np.ndarray, targets: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    nodes = int(max(sources.max(), targets.max())) + 1
    for _ in range(ROUNDS):
        order = generator.permutation(len(sources))
        half = len(order) // 2
        first, second = order[:half], order[half : 2 * half]
        swapped = sources[first] * nodes + targets[second], sources[second] * nodes + targets[first]
        proposed = np.concatenate(swapped)
        taken = np.isin(proposed, sources * nodes + targets)
        _, inverse, counts = np.unique(proposed, return_inverse=True, return_counts=True)
        free = ~(taken | (counts[inverse] > 1))
        accepted = free[:half] & free[half:]
        a, b = first[accepted], second[accepted]
        targets[a], targets[b] = targets[b], targets[a]
    return targets


def default_epsilons(graph: InteractionGraph) -> list[float]:
    """The smallest of the largest edges that carry 99 % of each section's Ê²; 0 where all edges are 0."""
    epsilons = []
    for k in range(len(graph.edges)):
        inner = graph.inner_edges(k).double().flatten()
        values = inner[inner > 0].sort(descending=True).values
        shares = values.square().cumsum(0) / values.square().sum()
        last = min(int((shares < CARRIED_SHARE).sum()), len(values) - 1)
        epsilons.append(values[last].item() if len(values) else 0.0)
    return epsilons
