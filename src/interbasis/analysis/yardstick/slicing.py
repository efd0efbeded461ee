"""PCA slicing of the residual stream (SliceGPT)."""

import torch

from interbasis.analysis.yardstick.codes import Codes, MethodInputs, all_places
from interbasis.analysis.yardstick.metric_code import principal_code
from interbasis.lib.covariance import Covariance
from interbasis.network.cores import Normalize, Variance
from interbasis.network.network import Network


class Slicing:
    """Principal directions of the normalised stream, with the others deleted.

    With X [tokens, d] the outputs of the norm that reads a residual stream, Q are the eigenvectors of XᵀX in
    descending order, and the stream x becomes Q_r Q_rᵀ x (Ashkboos et al. 2024, arXiv:2401.15024): every
    token counts alike whatever its norm, the Gram is not centred, and dropped directions are put at 0. A
    layer norm's centring is taken out of the stream first there; here its direction has eigenvalue 0 and
    comes last. In a network without norms X are the activations themselves. A method for residual streams:
    layers that hold more than one stream have no code.
    """

    name = "slicing"

    def fit(self, inputs: MethodInputs) -> Codes:
        network, covariances = inputs.network, inputs.covariances()
        codes = {}
        for index, section in enumerate(network.sections):
            place = all_places(network)[section.source.name]
            gram = _normalised_gram(network, index, covariances)
            if gram is not None and len(gram) == place.width:
                zero = torch.zeros(place.width, dtype=torch.float64)
                codes[place.name] = principal_code(place.columns, zero, gram)
        return codes


def _normalised_gram(network: Network, index: int, covariances: list[Covariance]) -> torch.Tensor | None:
    """E[XᵀX] of what the norm after a node layer puts out; without norms in the network, of the layer."""
    cores = [section.core for section in network.sections]
    if not any(isinstance(core, Variance) for core in cores):
        return _second_moment(covariances[index])
    if not isinstance(cores[index], Variance) or index + 1 == len(cores):
        return None
    following = network.sections[index + 1]
    if not isinstance(following.core, Normalize):
        return None
    first = following.target.first_coordinate
    written = following.write.any(1).nonzero()[:, 0].cpu() - first
    moment = _second_moment(covariances[index + 2])
    return None if moment is None else moment[written][:, written]


def _second_moment(covariance: Covariance) -> torch.Tensor | None:
    """E[xxᵀ], not centred; None where only variances were collected."""
    if covariance.scatter.ndim == 1:
        return None
    mean = covariance.mean.cpu()
    return covariance.gram.cpu() + mean[:, None] * mean
