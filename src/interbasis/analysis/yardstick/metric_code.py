"""Directions that matter most in a metric: the code that LIB and activation-aware SVD share."""

from torch import Tensor

from interbasis.analysis.yardstick.codes import LinearCode
from interbasis.numerics.linalg import EPSILON, eigenbasis, haar_rotation


def metric_code(columns: slice, mean: Tensor, covariance: Tensor, metric: Tensor) -> LinearCode:
    """Rank directions by E[δᵀ G δ], the mean square in a metric G of what dropping each of them removes.

    With Σ = UᵀDU and D^½ U G Uᵀ D^½ = VᵀΛV, rows of V in descending order of Λ,

        E = V D^-½ U,    D = Uᵀ D^½ Vᵀ,

    which for every r is the projection of rank r with the least E‖G^½(x − x̂)‖². Directions without
    variance are left at their mean.

    Args:
        columns: Coordinates of the node layer.
        mean: Their means, [w].
        covariance: Σ [w, w].
        metric: G [w, w].

    Returns:
        The code.
    """
    D, U = eigenbasis(covariance)
    varies = len(D) * EPSILON * D[0] < D
    D, U = D[varies], U[varies]
    spread = D.sqrt()[:, None] * U  # [r, w]
    _, V = eigenbasis(spread @ metric @ spread.T)
    return LinearCode(columns, V @ (U / D.sqrt()[:, None]), (V @ spread).T.contiguous(), mean)


def principal_code(columns: slice, centre: Tensor, gram: Tensor) -> LinearCode:
    """Rank the eigenvectors of a Gram [w, w] by their eigenvalues, with dropped directions at ``centre``
    [w]."""
    _, U = eigenbasis(gram)
    return LinearCode(columns, U, U.T.contiguous(), centre)


def random_code(
    columns: slice, mean: Tensor, covariance: Tensor, metric: Tensor, key: tuple[int, int]
) -> LinearCode:
    """Directions of whitened activations in a random rotation, ranked as `metric_code` ranks its own."""
    D, U = eigenbasis(covariance)
    varies = len(D) * EPSILON * D[0] < D
    D, U = D[varies], U[varies]
    V = haar_rotation(len(D), key)
    spread = V @ (D.sqrt()[:, None] * U)
    order = (spread @ metric * spread).sum(1).argsort(descending=True, stable=True)
    encoder = V[order] @ (U / D.sqrt()[:, None])
    return LinearCode(columns, encoder, spread[order].T.contiguous(), mean)
