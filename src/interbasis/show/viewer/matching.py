"""Features of two runs on one page: each beside the one of the other run that overlaps most."""

from interbasis.analysis.feature_matching import layer_overlaps
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.show.viewer.schema import PageMatch


def matches(a: InteractionGraph, b: InteractionGraph) -> tuple[PageMatch, ...]:
    """For every layer of both graphs whose overlaps are known, each feature's best match."""
    layers = {layer.name: layer for layer in b.layers}
    matched = []
    for layer in a.layers:
        twin = layers.get(layer.name)
        if twin is None or layer.width != twin.width:
            continue
        overlaps = layer_overlaps(a, b, layer, twin)
        if overlaps is None:
            continue
        overlap = overlaps(None)
        first, second = overlap.max(1), overlap.max(0)
        matched.append(
            PageMatch(
                layer=layer.name,
                first=first.indices,
                first_overlap=first.values,
                second=second.indices,
                second_overlap=second.values,
            )
        )
    return tuple(matched)
