"""What the features mean: what they respond to, what they do, how sure we are.

Analyses read features from a *source*: `of(network, layer)`, or any function from inputs to values
[samples, positions, features].
"""

from typing import TYPE_CHECKING

from interbasis.base.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis.analysis.features.activations import collect, of
    from interbasis.analysis.features.by_position import positions
    from interbasis.analysis.features.contexts import Images, Rows, Tokens
    from interbasis.analysis.features.dataset_examples import Plan, examples
    from interbasis.analysis.features.effects import direct_effects
    from interbasis.analysis.features.fourier_labels import fourier, label
    from interbasis.analysis.features.interventions import intervene
    from interbasis.analysis.features.monosemanticity import compare, monosemantic
    from interbasis.analysis.features.probes import (
        auroc,
        best,
        explained_variance,
        probe,
        r_squared,
        separation,
    )
    from interbasis.analysis.features.relevance import idle

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
