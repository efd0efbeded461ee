"""Every basis of the scoreboard: those of `interbasis.build`, independent components, and the ceiling."""

import warnings
from typing import get_args

import numpy as np
import torch
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from interbasis.base.records import Basis
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.edges import edges
from interbasis.run.build import build
from interbasis_studies.known.records import ScoredBasis
from interbasis_studies.known.truth import KnownNetwork

MAX_ICA_ITERATIONS = 100
SMALLEST_VARIANCE = 1e-9
"""Relative to the largest: directions below it are dropped by ICA and by the ceiling."""


def fit(known: KnownNetwork, basis: ScoredBasis, seed: int = 0) -> InteractionGraph:
    """Build the interaction graph of a known network in one basis.

    Args:
        known: The network with its inputs and its truth, which only ``ceiling`` looks at.
        basis: A basis of `interbasis.build`, ``ica``, ``unwhitened`` (eigenvectors of LIB's Jacobian Gram in
            the coordinates of the layer) or ``ceiling`` (LIB in every true part by itself).
        seed: Seed of all random numbers.

    Returns:
        The graph; its provenance is that of LIB where `interbasis.build` has no such basis.
    """
    if basis in get_args(Basis):
        name: Basis = basis  # type: ignore[assignment]  # mypy does not narrow by get_args
        return build(known.network, known.inputs, basis=name, seed=seed, exact=True, progress=False).graph
    graph = fit_lib(known, seed)
    layers = list(graph.layers)
    for k, layer in enumerate(layers[:-1]):
        if basis == "ica":
            layers[k] = _independent(known, k, layer, seed)
        else:
            layers[k] = _ceiling(known, k, layer) if basis == "ceiling" else _unwhitened(layer)
    strengths = edges(known.network, layers, known.inputs)
    return InteractionGraph(layers, strengths, graph.config, graph.provenance)


def fit_lib(known: KnownNetwork, seed: int) -> InteractionGraph:
    """LIB of a known network without edges."""
    return build(known.network, known.inputs, seed=seed, exact=True, progress=False, edge_method=None).graph


def centred_layer(layer: LayerBasis, forward: Tensor, back: Tensor) -> LayerBasis:
    """f̂ = C (f − mean) for C [r, w] and its right inverse [w, r], the constant in front."""
    assert layer.mean is not None
    mean = layer.mean[1:]
    transform = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), forward)
    transform[1:, 0] = -(forward @ mean)
    inverse = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), back)
    inverse[1:, 0] = mean
    return LayerBasis(layer.name, transform, inverse, layer.mean)


def _independent(known: KnownNetwork, index: int, layer: LayerBasis, seed: int) -> LayerBasis:
    """FastICA of the activations, at variance 1."""
    values = known.network.activations_at(index, known.inputs).flatten(0, 1)[:, 1:].numpy()
    variances = np.linalg.eigvalsh(np.cov(values.T))
    rank = int((variances > SMALLEST_VARIANCE * variances[-1]).sum())
    model = FastICA(rank, whiten="unit-variance", random_state=seed, max_iter=MAX_ICA_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # normal inputs have no independent components
        model.fit(values)
    return centred_layer(layer, torch.from_numpy(model.components_.copy()), torch.from_numpy(model.mixing_))


def _unwhitened(layer: LayerBasis) -> LayerBasis:
    """Eigenvectors of M′ = CᵀC in the layer's own coordinates: f̂ = Λ^½ V f."""
    C = layer.transform[1:, 1:]
    _, singular, V = torch.linalg.svd(C, full_matrices=False)
    return centred_layer(layer, singular[:, None] * V, V.T / singular)


def _ceiling(known: KnownNetwork, index: int, layer: LayerBasis) -> LayerBasis:
    """LIB in every part by itself: whiten with S_kk, then the eigenvectors of the part's block of M′."""
    truth, T = known.truth, known.truth.mixings[index]
    C = layer.transform[1:, 1:] @ T
    M, S, undo = C.T @ C, truth.covariance(index), torch.linalg.pinv(T)
    forward, back = [], []
    for part in truth.present(index):
        inside = truth.parts[index] == part
        D, U = torch.linalg.eigh(S[inside][:, inside])
        if not D.max() > SMALLEST_VARIANCE * S.diagonal().max():
            continue
        spread = (U * D.clamp_min(0).sqrt())[:, SMALLEST_VARIANCE * D.max() < D]  # [size, directions]
        Λ, V = torch.linalg.eigh(spread.T @ M[inside][:, inside] @ spread)
        used = SMALLEST_VARIANCE * M.diagonal().max() < Λ
        Λ, V = Λ[used], V[:, used]
        forward.append((Λ.sqrt() * V).T @ torch.linalg.pinv(spread) @ undo[inside])
        back.append(T[:, inside] @ spread @ (V / Λ.sqrt()))
    return centred_layer(layer, torch.cat(forward), torch.cat(back, dim=1))
