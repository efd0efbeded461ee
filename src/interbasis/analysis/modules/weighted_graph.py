"""The edges of all layers as one undirected weighted graph."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph

CARRIED = 0.99
"""Share of a section's Ê² whose edges count where nobody says which are needed."""


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
    epsilons: tuple[float, ...] = ()
    connected: np.ndarray = field(init=False)
    """Nodes that have an edge, ascending."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "connected", np.unique(np.concatenate([self.sources, self.targets])))

    @classmethod
    def of(cls, graph: InteractionGraph, epsilons: Sequence[float] | None = None) -> "WeightedGraph":
        if not graph.edges:
            raise InterbasisError("the graph has no edges; build it with an edge_method")
        chosen = tuple(needed(graph) if epsilons is None else map(float, epsilons))
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
        for k, edges in enumerate(graph.edges):
            if not filled[k]:
                continue
            matrix = edges.double().cpu().numpy()
            weights = np.log(np.maximum(matrix, chosen[k]) / chosen[k])
            weights[: graph.layers[k + 1].first_feature] = 0
            weights[:, : graph.layers[k].first_feature] = 0
            rows, columns = weights.nonzero()
            parts.append(
                (offsets[k] + columns, offsets[k + 1] + rows, weights[rows, columns], np.full(len(rows), k))
            )
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
        if not len(joined[0]):
            raise InterbasisError("no edge is larger than its section's ε, so there is nothing to group")
        return cls(joined[0], joined[1], joined[2], joined[3], offsets, chosen)


def needed(graph: InteractionGraph) -> list[float]:
    """The smallest of the largest edges that carry 99 % of each section's Ê²; 0 where all edges are 0."""
    epsilons = []
    for k in range(len(graph.edges)):
        inner = graph.inner_edges(k).double().flatten()
        values = inner[inner > 0].sort(descending=True).values
        if not len(values):
            epsilons.append(0.0)
            continue
        shares = values.square().cumsum(0) / values.square().sum()
        epsilons.append(values[min(int((shares < CARRIED).sum()), len(values) - 1)].item())
    return epsilons
