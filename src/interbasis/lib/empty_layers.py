"""Node layers without features: nothing varies there, or the threshold is above everything that does."""

from interbasis.base.errors import InterbasisError
from interbasis.base.messages import logger
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import BuildConfig

MAX_NAMES = 4
"""Layers that a message names."""


class EmptyLayersError(InterbasisError):
    """No node layer has features."""


def check_features(graph: InteractionGraph, *, warns: bool = True) -> None:
    """Warn of layers without features before the last one, which keeps all of its directions.

    Raises:
        EmptyLayersError: No layer has any, because of the threshold that was given.
    """
    inner = graph.layers[:-1]
    empty = [layer for layer in inner if layer.features == layer.first_feature + layer.isolated]
    cut = [layer for layer in empty if _is_cut(layer, graph.config.threshold)]
    if cut:
        sentence = (
            f"the threshold {graph.config.threshold:g} is above every variance, or every Λ, at "
            f"{_names(cut)}, so that no features are left there; give a smaller one (--threshold)"
        )
        if len(cut) == len(inner):
            raise EmptyLayersError(sentence)
        if warns:
            logger.warning(sentence)
    elif empty and warns:
        logger.warning(
            f"there are no features at {_names(empty)}: nothing varies there over the data, or nothing that "
            "varies matters to what follows; are all inputs the same?"
        )


def _is_cut(layer: LayerBasis, threshold: float) -> bool:
    """Whether the default threshold would have kept some of it."""
    default = BuildConfig.model_fields["threshold"].default
    cuts = (layer.variance_cut, layer.jacobian_cut)
    dropped = [cut.largest_dropped for cut in cuts if cut is not None and cut.largest_dropped is not None]
    return any(default < value <= threshold for value in dropped)


def _names(layers: list[LayerBasis]) -> str:
    names = [layer.name for layer in layers]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
