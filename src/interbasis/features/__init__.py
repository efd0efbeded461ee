"""What the features mean: what they respond to, what they do, how sure we are.

Analyses read features from a *source*: `of(network, layer)`, or any function from inputs to values
[samples, positions, features].
"""

from typing import TYPE_CHECKING

from interbasis.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis.features.activations import collect, of
    from interbasis.features.by_position import positions
    from interbasis.features.contexts import Images, Rows, Tokens
    from interbasis.features.dataset_examples import Plan, examples
    from interbasis.features.effects import direct_effects
    from interbasis.features.fourier_labels import fourier, label
    from interbasis.features.interventions import intervene
    from interbasis.features.monosemanticity import compare, monosemantic
    from interbasis.features.probes import auroc, best, explained_variance, probe, r_squared, separation
    from interbasis.features.relevance import idle

_HOMES = {
    "Images": "contexts",
    "Plan": "dataset_examples",
    "Rows": "contexts",
    "Tokens": "contexts",
    "auroc": "probes",
    "best": "probes",
    "collect": "activations",
    "compare": "monosemanticity",
    "direct_effects": "effects",
    "examples": "dataset_examples",
    "explained_variance": "probes",
    "fourier": "fourier_labels",
    "idle": "relevance",
    "intervene": "interventions",
    "label": "fourier_labels",
    "monosemantic": "monosemanticity",
    "of": "activations",
    "positions": "by_position",
    "probe": "probes",
    "r_squared": "probes",
    "separation": "probes",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
