"""Functional relevance: features that the network computes and then makes no use of.

An edge counts if Ê exceeds a threshold of its section: a fraction of the section's largest edge
(the constant's left out), or an absolute value such as the smallest edge that an ablation still needs. A
feature with such an edge coming in and none going out is *idle*.
"""

from collections.abc import Sequence

from interbasis.analysis.features.records import Idle
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph

MIN_EDGE_FRACTION = 0.03
"""Such an edge has a thousandth of the largest one's Ê², which is what line widths show: it cannot be seen.
Counts hang on this choice; give it with them."""


def idle(
    graph: InteractionGraph,
    top: int | None = 25,
    fraction: float = MIN_EDGE_FRACTION,
    thresholds: Sequence[float] | None = None,
) -> list[Idle]:
    """Find the idle features of every layer that has edges on both sides.

    Args:
        graph: A graph with edges.
        top: Features of each layer that are considered; None is all.
        fraction: An edge counts from this fraction of its section's largest on.
        thresholds: An absolute Ê per section instead.

    Returns:
        One record per inner layer.

    Raises:
        InterbasisError: The graph has no edges, or thresholds do not match its sections.
    """
    if not graph.edges:
        raise InterbasisError("this run was built without edges; build it again with an edge method")
    if thresholds is not None and len(thresholds) != len(graph.edges):
        raise InterbasisError(
            f"expected a threshold for each of {len(graph.edges)} sections, received {len(thresholds)}"
        )
    inner = [graph.inner_edges(k) for k in range(len(graph.edges))]
    if thresholds is None:
        thresholds = [fraction * (edges.max().item() if edges.numel() else 0.0) for edges in inner]
    layers = []
    for k in range(1, len(graph.layers) - 1):
        layer, shift = graph.layers[k], graph.layers[k].first_feature
        reached = (inner[k - 1] > thresholds[k - 1]).any(1)[:top]
        used = (inner[k] > thresholds[k]).any(0)[:top]
        features = (reached & ~used).nonzero().flatten() + shift
        layers.append(
            Idle(
                layer=layer.name,
                considered=len(reached),
                features=tuple(features.tolist()),
                incoming=thresholds[k - 1],
                outgoing=thresholds[k],
            )
        )
    return layers
