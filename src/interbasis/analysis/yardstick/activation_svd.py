"""Activation-aware singular value decomposition of weights, whitened by the Gram of the inputs (SVD-LLM)."""

from interbasis.analysis.yardstick.codes import Codes, MethodInputs, all_places
from interbasis.analysis.yardstick.metric_code import metric_code
from interbasis.analysis.yardstick.weight_svd import weight_matrices


class ActivationSVD:
    """Directions of the inputs that matter most to what the next weight matrix reads.

    With S Sᵀ = Σ, the Gram of the inputs x of W, and W S = U T Vᵀ, the matrix W′ of rank r with the least
    E‖W x − W′ x‖² is U_r T_r V_rᵀ S⁻¹ = W (S V_r)(V_rᵀ S⁻¹) (Wang et al. 2024, arXiv:2403.07378): E = Vᵀ S⁻¹,
    D = S V, for any root S of Σ. This is `metric_code` with G = WᵀW. Here Σ is centred, since dropped
    directions are put at their mean. It sees the weights that read a place, but neither the slope of what
    follows nor any later layer; with both it would be LIB.
    """

    name = "activation-svd"

    def fit(self, inputs: MethodInputs) -> Codes:
        covariances = inputs.covariances()
        codes = {}
        for name, weights in weight_matrices(inputs.network).items():
            place = all_places(inputs.network)[name]
            first = inputs.network.nodes[place.layer].first_coordinate
            here = slice(place.columns.start - first, place.columns.stop - first)
            covariance = covariances[place.layer]
            codes[name] = metric_code(
                place.columns,
                covariance.mean[here].cpu(),
                covariance.gram[here, here].cpu(),
                weights.T @ weights,
            )
        return codes
