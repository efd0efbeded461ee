"""The neuron basis: f̂ = f."""

from collections.abc import Sequence

from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import NEURON
from interbasis.lib.bases.basis import FeatureBasis, FitSettings, JacobianSource
from interbasis.lib.bases.principal import unrotated
from interbasis.lib.covariance import Covariance
from interbasis.network.network import NodeLayer


class NeuronBasis(FeatureBasis):
    """Every coordinate is a feature."""

    kind = NEURON
    needs_grams = False

    def fit(
        self,
        nodes: Sequence[NodeLayer],
        covariances: Sequence[Covariance],
        jacobians: JacobianSource,
        settings: FitSettings,
    ) -> list[LayerBasis]:
        return [unrotated(node, covariance) for node, covariance in zip(nodes, covariances, strict=True)]
