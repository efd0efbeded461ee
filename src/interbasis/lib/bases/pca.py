"""Principal components: f̂ = U H f, without whitening and without Jacobians."""

from collections.abc import Sequence

from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import PCA
from interbasis.lib.bases.basis import FeatureBasis, FitSettings, JacobianSource
from interbasis.lib.bases.principal import Principal, last_layer
from interbasis.lib.covariance import Covariance
from interbasis.network.network import NodeLayer


class PrincipalBasis(FeatureBasis):
    """U of G = UᵀDU, the centred Gram of every layer."""

    kind = PCA

    def fit(
        self,
        nodes: Sequence[NodeLayer],
        covariances: Sequence[Covariance],
        jacobians: JacobianSource,
        settings: FitSettings,
    ) -> list[LayerBasis]:
        inner = [
            Principal.from_covariance(node, covariance, settings.variance_floor, divides=False).rotated()
            for node, covariance in zip(nodes[:-1], covariances[:-1], strict=True)
        ]
        return [*inner, settings.end or last_layer(nodes[-1], covariances[-1], settings.rotate_last)]
