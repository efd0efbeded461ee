"""Functional relevance: features that the network computes and then makes no use of.

An edge is worth the name if Ê exceeds a threshold of its section: a fraction of the section's largest edge
(the constant's left out), or an absolute value such as the smallest edge that an ablation still needs. A
feature with such an edge coming in and none going out is *idle*.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.runtime.errors import InterbasisError

FRACTION = 0.03
"""Such an edge has a thousandth of the largest one's Ê², which is what line widths show: it cannot be seen.
Counts hang on this choice; give it with them."""


@dataclass(frozen=True)
class Idle:
    """The idle features of one layer."""

    layer: str
    considered: int
    """How many features were looked at, the constant left out."""
    features: tuple[int, ...]
    """Those with incoming but no outgoing edges."""
    incoming: float
    """Threshold of Ê on the way in."""
    outgoing: float
    """Threshold of Ê on the way out."""

    @property
    def count(self) -> int:
        return len(self.features)


def idle(
    graph: InteractionGraph,
    top: int | None = 25,
    fraction: float = FRACTION,
    thresholds: Sequence[float] | None = None,
) -> list[Idle]:
    """The idle features among the first ``top`` of every layer that has edges on both sides.

    ``thresholds`` gives an absolute Ê per section instead of a fraction of the largest edge.
    """
    if not graph.edges:
        raise InterbasisError("this run was built without edges; build it again with an edge method")
    if thresholds is not None and len(thresholds) != len(graph.edges):
        raise InterbasisError(
            f"expected a threshold for each of {len(graph.edges)} sections, received {len(thresholds)}"
        )
    inner = [_without_constant(graph, k) for k in range(len(graph.edges))]
    if thresholds is None:
        limits = [fraction * (edges.max().item() if edges.numel() else 0.0) for edges in inner]
    else:
        limits = list(thresholds)
    found = []
    for k in range(1, len(graph.layers) - 1):
        layer, shift = graph.layers[k], int(graph.layers[k].constant)
        reached = (inner[k - 1] > limits[k - 1]).any(1)[:top]
        used = (inner[k] > limits[k]).any(0)[:top]
        features = (reached & ~used).nonzero().flatten() + shift
        found.append(Idle(layer.name, len(reached), tuple(features.tolist()), limits[k - 1], limits[k]))
    return found


def _without_constant(graph: InteractionGraph, k: int) -> Tensor:
    source, target = graph.layers[k], graph.layers[k + 1]
    return graph.edges[k][int(target.constant) :, int(source.constant) :]
