"""What the features mean: what they respond to, what they do, how sure we are.

Analyses read features from a *source*: `of(network, layer)`, or any function from inputs to values
[samples, positions, features].
"""

from interbasis.features.activations import collect, of
from interbasis.features.contexts import Images, Rows, Tokens
from interbasis.features.effects import direct_effects
from interbasis.features.examples import Plan, examples
from interbasis.features.fourier import fourier, label
from interbasis.features.interventions import intervene
from interbasis.features.monosemanticity import compare, monosemantic
from interbasis.features.positions import positions
from interbasis.features.probes import auroc, best, explained_variance, probe, r_squared, separation
from interbasis.features.relevance import idle

__all__ = [
    "Images",
    "Plan",
    "Rows",
    "Tokens",
    "auroc",
    "best",
    "collect",
    "compare",
    "direct_effects",
    "examples",
    "explained_variance",
    "fourier",
    "idle",
    "intervene",
    "label",
    "monosemantic",
    "of",
    "positions",
    "probe",
    "r_squared",
    "separation",
]
