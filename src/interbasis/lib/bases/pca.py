"""Principal components: f̂ = U H f, without whitening and without Jacobians."""

from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.settings import PCA
from interbasis.lib.bases.basis import FeatureBasis, FitInputs
from interbasis.lib.bases.principal import Principal, last_layer


class PrincipalBasis(FeatureBasis):
    """U of G = UᵀDU, the centred Gram of every layer."""

    kind = PCA

    def fit(self, inputs: FitInputs) -> list[LayerBasis]:
        *layers, last = zip(inputs.nodes, inputs.covariances, strict=True)
        inner = [
            Principal.from_covariance(*layer, inputs.config.variance_floor, divides=False).rotated()
            for layer in layers
        ]
        return [*inner, inputs.end or last_layer(*last, inputs.rotate_last)]
