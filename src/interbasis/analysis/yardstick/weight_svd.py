"""Truncated singular value decomposition of weights, blind to the data but for the mean."""

import torch

from interbasis.analysis.yardstick.codes import Codes, LinearCode, MethodInputs, all_places, weight_columns
from interbasis.network.network import Network
from interbasis.numerics.linalg import right_singular_basis


class WeightSVD:
    """Directions in which the next weight matrix is largest.

    With W [out, w] the matrix that reads a place and W = U S Vᵀ, the matrix of rank r nearest to W is
    U_r S_r V_rᵀ = W V_r V_rᵀ (Eckart & Young 1936): W itself, reading the projection V_r V_rᵀ x. So E = Vᵀ,
    D = V, in descending order of S. Directions that W does not read come last. Dropped directions are put
    at their mean, where the usual form puts them at 0: a bias makes up for that at no cost.
    """

    name = "weight-svd"

    def fit(self, inputs: MethodInputs) -> Codes:
        means = [layer.mean.cpu() for layer in inputs.covariances()]
        codes = {}
        for name, weights in weight_matrices(inputs.network).items():
            place = all_places(inputs.network)[name]
            first = inputs.network.nodes[place.layer].first_coordinate
            _, V = right_singular_basis(torch.linalg.qr(weights, mode="r").R)  # [r, w], r ≤ w
            rest = torch.linalg.svd(V, full_matrices=True).Vh[len(V) :]
            V = torch.cat([V, rest])
            mean = means[place.layer][place.columns.start - first : place.columns.stop - first]
            codes[name] = LinearCode(place.columns, V, V.T.contiguous(), mean)
        return codes


def weight_matrices(network: Network) -> dict[str, torch.Tensor]:
    """Weight matrices [out, w] in float64, by the place that they alone read."""
    matrices = {}
    for name, place in all_places(network).items():
        section = network.sections[place.layer]
        if weight_columns(section) == place.columns:
            matrix = section.read if len(section.read) else section.skip
            matrices[name] = matrix[:, place.columns].cpu().double()
    return matrices
