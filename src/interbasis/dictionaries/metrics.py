"""Metrics in which the error of a reconstruction is measured.

The error x − x̂ matters as far as the network reads it: to second order (x − x̂)ᵀ G (x − x̂), with G the Gram
of the Jacobian to what follows. LIB's G = CᵀC (C without the constant's row and column) is the mean of that,
recursed from the layers above. With Σ the covariance of the activations, the metrics are

    raw    1 / tr Σ                           the usual squared error
    lib    G / tr(G Σ)
    root   G^½ / tr(G^½ Σ)                    less greedy: G is peaked
    both   1 / tr Σ + G / tr(G Σ)
    gib    G / tr(G Σ)                        with GIB's C, of Jacobians to the last node layer
    fisher F / tr(F Σ)                        with the mean Fisher metric of the output (`fisher.py`)
"""

import torch
from torch import Tensor

from interbasis.dictionaries.settings import MetricKind
from interbasis.graph.layer_basis import LayerBasis

FLOOR = 1e-12
"""Eigenvalues below this share of the largest are 0: directions that a metric ignores."""


def basis_gram(layer: LayerBasis, columns: slice) -> Tensor:  # [d, d]
    """G = CᵀC of a basis in the coordinates ``columns`` of a node layer, in float64."""
    C = layer.transform[layer.first_feature :, columns].double()
    return C.T @ C


def metric_matrix(kind: MetricKind, gram: Tensor, covariance: Tensor) -> Tensor:  # [d, d]
    """The metric of a kind, from its G or F and the covariance Σ, [d, d] each."""
    identity = torch.eye(len(covariance)).to(covariance)
    matrices = {
        "raw": [identity],
        "lib": [gram],
        "root": [power(gram, 0.5)],
        "both": [identity, gram],
        "gib": [gram],
        "fisher": [gram],
    }[kind]
    return torch.stack([matrix / torch.trace(matrix @ covariance) for matrix in matrices]).sum(0)


def power(matrix: Tensor, exponent: float) -> Tensor:  # [d, d]
    """A power of a symmetric positive matrix; of a negative one, directions of eigenvalue 0 stay 0."""
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > FLOOR * values[-1]
    powers = torch.where(kept, values.clamp_min(torch.finfo(values.dtype).tiny) ** exponent, 0.0)
    return (vectors * powers) @ vectors.T
