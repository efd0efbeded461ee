"""Matches between two runs: the formula against correlations of the activations themselves."""

import pytest
import torch

from interbasis import build, from_torch
from interbasis.show.viewer.matching import correlations, matches


@pytest.fixture(scope="module")
def three():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4)).double()
    inputs = torch.randn(300, 7, dtype=torch.float64) @ torch.randn(7, 7, dtype=torch.float64)
    network = from_torch(model)
    return network, inputs, [build(network, inputs, basis=basis).graph for basis in ("lib", "pca", "neuron")]


@pytest.mark.parametrize("other", [1, 2])
@pytest.mark.parametrize("k", [0, 1])
def test_overlaps_are_correlations_over_the_data(three, k, other):
    network, inputs, graphs = three
    activations = network.activations(inputs)[k].double()
    a, b = (graph.layers[k] for graph in (graphs[0], graphs[other]))
    features = [layer.to_features(activations.flatten(0, -2))[:, 1:] for layer in (a, b)]
    centred = [one - one.mean(0) for one in features]
    scaled = [one / one.norm(dim=0).clamp_min(1e-300) for one in centred]
    measured = (scaled[0].T @ scaled[1]).abs()
    told = correlations(a, b, b.eigenvalues if other == 1 else b.variances)[1:, 1:]
    torch.testing.assert_close(told, measured, atol=1e-10, rtol=0)


def test_other_models_are_not_matched(three):
    _, _, (lib, pca, _) = three
    assert [match.layer for match in matches(lib, pca)] == lib.layer_names
    provenance = pca.provenance.model_copy(update={"model_fingerprint": "another"})
    stranger = type(pca)(pca.layers, pca.edges, pca.config, provenance)
    assert matches(lib, stranger) == ()
