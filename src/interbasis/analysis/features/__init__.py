"""Meaning of features: labels, probes, effects, interventions and dataset examples.

Analyses read features from a *source*: `FeatureReader(network, layer)`, or any function from inputs to values
[samples, positions, features].
"""

from typing import TYPE_CHECKING

from interbasis.base.lazy import lazy_names

if TYPE_CHECKING:
    from interbasis.analysis.features.activations import FeatureReader, collect
    from interbasis.analysis.features.contexts import ImageRendering, RowRendering, TokenRendering
    from interbasis.analysis.features.dataset_examples import ExamplePlan, examples
    from interbasis.analysis.features.effects import direct_effects, idle
    from interbasis.analysis.features.fourier_labels import compare, fourier, label, monosemantic
    from interbasis.analysis.features.interventions import intervene
    from interbasis.analysis.features.probes import (
        auroc,
        best,
        explained_variance,
        positions,
        probe,
        r_squared,
        separation,
    )  # fmt: skip

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
