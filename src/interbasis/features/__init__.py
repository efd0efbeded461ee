"""What the features mean: what they respond to, what they do, how sure we are.

Analyses read features from a *source*: `of(network, layer)`, or any function from inputs to values
[samples, positions, features].
"""

from interbasis.features.activations import collect, of
from interbasis.features.fourier import fourier, label
from interbasis.features.interventions import intervene
from interbasis.features.monosemanticity import compare, monosemantic
from interbasis.features.probes import auroc, best, explained_variance, probe, r_squared, separation

__all__ = [
    "auroc",
    "best",
    "collect",
    "compare",
    "explained_variance",
    "fourier",
    "intervene",
    "label",
    "monosemantic",
    "of",
    "probe",
    "r_squared",
    "separation",
]
