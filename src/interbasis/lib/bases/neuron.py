"""The neuron basis: f̂ = f."""

from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import NEURON
from interbasis.lib.bases.basis import FeatureBasis, FitInputs
from interbasis.lib.bases.principal import unrotated


class NeuronBasis(FeatureBasis):
    """Every coordinate is a feature."""

    kind = NEURON
    needs_grams = False

    def fit(self, inputs: FitInputs) -> list[LayerBasis]:
        return [unrotated(*layer) for layer in zip(inputs.nodes, inputs.covariances, strict=True)]
