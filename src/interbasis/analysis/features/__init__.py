"""Meaning of features: labels, probes, effects, interventions and dataset examples.

Analyses read features from a *source*: `FeatureReader(network, layer)`, or any function from inputs to values
[samples, positions, features].
"""

from typing import TYPE_CHECKING

from interbasis.base.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis.analysis.features.activations import FeatureReader as FeatureReader
    from interbasis.analysis.features.activations import collect as collect
    from interbasis.analysis.features.contexts import (
        ImageRendering as ImageRendering,
    )
    from interbasis.analysis.features.contexts import (
        RowRendering as RowRendering,
    )
    from interbasis.analysis.features.contexts import (
        TokenRendering as TokenRendering,
    )
    from interbasis.analysis.features.dataset_examples import ExamplePlan as ExamplePlan
    from interbasis.analysis.features.dataset_examples import examples as examples
    from interbasis.analysis.features.effects import direct_effects as direct_effects
    from interbasis.analysis.features.effects import idle as idle
    from interbasis.analysis.features.fourier_labels import (
        compare as compare,
    )
    from interbasis.analysis.features.fourier_labels import (
        fourier as fourier,
    )
    from interbasis.analysis.features.fourier_labels import (
        label as label,
    )
    from interbasis.analysis.features.fourier_labels import (
        monosemantic as monosemantic,
    )
    from interbasis.analysis.features.interventions import intervene as intervene
    from interbasis.analysis.features.probes import auroc as auroc  # fmt: skip
    from interbasis.analysis.features.probes import best as best
    from interbasis.analysis.features.probes import explained_variance as explained_variance
    from interbasis.analysis.features.probes import positions as positions
    from interbasis.analysis.features.probes import probe as probe
    from interbasis.analysis.features.probes import r_squared as r_squared
    from interbasis.analysis.features.probes import separation as separation

_MODULES = {
    "activations": ("FeatureReader", "collect"),
    "contexts": ("ImageRendering", "RowRendering", "TokenRendering"),
    "dataset_examples": ("ExamplePlan", "examples"),
    "effects": ("direct_effects", "idle"),
    "fourier_labels": ("compare", "fourier", "label", "monosemantic"),
    "interventions": ("intervene",),
    "probes": ("auroc", "best", "explained_variance", "positions", "probe", "r_squared", "separation"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
