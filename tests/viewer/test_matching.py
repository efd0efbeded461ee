"""Matches between two runs: the formula against correlations of the activations themselves."""

import pytest
import torch

from interbasis import build
from interbasis.run.specs import open_model
from interbasis.viewer.matching import correlations, matches


@pytest.fixture(scope="module")
def three():
    opened = open_model("modadd")
    return opened, [build(opened.network, opened.data, basis) for basis in ("lib", "pca", "neuron")]


@pytest.mark.parametrize("other", [1, 2])
def test_overlaps_are_correlations_over_the_data(three, other):
    opened, graphs = three
    inputs = opened.data.inputs if hasattr(opened.data, "inputs") else opened.data[0]
    k = graphs[0].layer_names.index("mlp_in.0")
    activations = opened.network.activations(inputs)[k].double()
    a, b = (graph.layers[k] for graph in (graphs[0], graphs[other]))
    features = [layer.features_of(activations.flatten(0, -2))[:, 1:] for layer in (a, b)]
    centred = [one - one.mean(0) for one in features]
    scaled = [one / one.norm(dim=0).clamp_min(1e-300) for one in centred]
    measured = (scaled[0].T @ scaled[1]).abs()
    told = correlations(a, b)[1:, 1:]
    strong = centred[1].norm(dim=0) > 1e-6 * centred[1].norm(dim=0).max()
    torch.testing.assert_close(told[:20, strong], measured[:20, strong], atol=1e-6, rtol=0)


def test_other_models_are_not_matched(three):
    _, (lib, pca, _) = three
    assert [match.layer for match in matches(lib, pca)] == ["attn_in.0", "mlp_in.0", "unembed"]
    provenance = pca.provenance.model_copy(update={"model_fingerprint": "another"})
    stranger = type(pca)(pca.layers, pca.edges, pca.config, provenance)
    assert matches(lib, stranger) == ()
