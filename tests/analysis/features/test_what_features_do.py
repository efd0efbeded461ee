"""Positions, idle features, histograms and direct effects, each against its plain definition."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import interbasis
from cases import Case, mlp, modular_addition, normal
from interbasis import features
from interbasis.analysis.features import activations
from interbasis.analysis.features.effects import direct_path
from interbasis.analysis.features.histograms import HistogramSums
from interbasis.graph.interaction_graph import InteractionGraph


def test_positional_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "CHUNK_BYTES", 700)
    n, T = 50, 6
    noise = normal(n, T)
    x = torch.stack([torch.arange(T).expand(n, T).double(), noise, torch.full((n, T), 0.3)], dim=2)
    x = torch.cat([x, (torch.arange(T) + noise)[..., None]], dim=2)
    found = features.positions(lambda inputs: inputs, x)
    assert torch.allclose(found.means, x.mean(0), rtol=1e-12)
    total = x[..., 3] - x[..., 3].mean()
    between = n * (x[..., 3].mean(0) - x[..., 3].mean()).square().sum() / total.square().sum()
    assert found.adjusted_explained.tolist()[0] == pytest.approx(1)
    assert found.adjusted_explained.tolist()[1] < 0.1
    assert found.adjusted_explained.tolist()[2] == 0
    adjusted = 1 - (1 - between) * (n * T - 1) / (n * T - T)
    assert found.adjusted_explained.tolist()[3] == pytest.approx(adjusted.item(), rel=1e-12)


def test_few_sequences_are_not_explained_by_their_positions() -> None:
    for n in (1, 2, 3):
        noise = normal(n, 400, 5)
        shares = features.positions(lambda inputs: inputs, noise).adjusted_explained
        assert shares.max() < 0.15


@pytest.fixture(scope="module")
def small() -> tuple[Case, InteractionGraph]:
    case = mlp(nn.ReLU())
    return case, interbasis.build(case.network, case.inputs).graph


def test_features_without_outgoing_edges(small: tuple[Case, InteractionGraph]) -> None:
    _, graph = small
    edges = [matrix.clone() for matrix in graph.edges]
    edges[1][:, 2] = 0.01 * edges[1][1:, 1:].max()  # feature 2 of the second layer is used no more
    edges[0][2, 1:] = edges[0][1:, 1:].max()
    changed = interbasis.InteractionGraph(graph.layers, edges, graph.config, graph.provenance)
    first, second = features.idle(changed)
    assert first.layer == graph.layers[1].name
    assert 2 in first.features
    assert first.outgoing == pytest.approx(0.03 * edges[1][1:, 1:].max().item())
    assert first.considered == graph.layers[1].features - 1
    assert features.idle(changed, top=1)[0].considered == 1
    for one in (first, second):
        k = [layer.name for layer in graph.layers].index(one.layer)
        for j in range(1, graph.layers[k].features):
            reached = (edges[k - 1][j, 1:] > one.incoming).any()
            used = (edges[k][1:, j] > one.outgoing).any()
            assert (j in one.features) == bool(reached and not used)


def test_idle_features_by_absolute_thresholds(small: tuple[Case, InteractionGraph]) -> None:
    _, graph = small
    assert all(one.count == 0 for one in features.idle(graph, thresholds=[0, 0, 0]))
    everything = features.idle(graph, thresholds=[0, 1e9, 1e9])
    assert everything[0].features == tuple(range(1, graph.layers[1].features))
    with pytest.raises(interbasis.InterbasisError, match="each of 3 sections"):
        features.idle(graph, thresholds=[0])
    without = interbasis.InteractionGraph(graph.layers, [], graph.config, graph.provenance)
    with pytest.raises(interbasis.InterbasisError, match="without edges"):
        features.idle(without)


@pytest.mark.parametrize(("basis", "before_mlp", "before_unembedding"), [("lib", 0, 0), ("pca", 7, 7)])
def test_the_papers_idle_features(
    paper_graph: Callable[..., "InteractionGraph"], basis: str, before_mlp: int, before_unembedding: int
) -> None:
    """M5, seed 0: PCA has features that nothing uses, LIB has not; as in the stored graphs."""
    found = features.idle(paper_graph(basis, 0))
    assert [one.count for one in found] == [before_mlp, before_unembedding]


@pytest.mark.parametrize("chunk", [10**6, 2000])
def test_histograms_count_every_value(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(activations, "CHUNK_BYTES", chunk)
    growing = torch.linspace(0.01, 50, 500, dtype=torch.float64) * normal(500, seed=3)
    values = torch.stack([normal(500), growing, torch.full((500,), 1.0), torch.zeros(500)], dim=1)
    sums = HistogramSums()
    for part in activations.chunks(lambda x: x, values):
        sums.add(part)
    for j, found in enumerate(sums.result()):
        column = values[:, j].numpy()
        assert sum(found.counts) == 500
        assert len(found.counts) <= 64
        index = np.searchsorted(found.edges, column, side="right") - 1
        assert np.bincount(index, minlength=len(found.counts)).tolist() == list(found.counts)
        if j < 2:
            assert len(found.counts) > 32


def test_direct_effects_of_the_layer_before_the_output(small: tuple[Case, InteractionGraph]) -> None:
    case, graph = small
    layer = graph.layers[2]
    weight = case.original[6].weight  # [4, 7], the last linear map
    moved = weight @ layer.inverse[1:]
    moved = (moved - moved.mean(0)) * layer.eigenvalues.sqrt()
    found = features.direct_effects(case.network, layer, ["a", "b", "c", "d"], top=2)
    for j in range(1, layer.features):
        order = moved[:, j].argsort(descending=True).tolist()
        assert [push.name for push in found[j].up] == ["abcd"[i] for i in order[:2]]
        assert [push.name for push in found[j].down] == ["abcd"[i] for i in order[:-3:-1]]
        assert found[j].up[0].value == pytest.approx(moved[:, j].max().item(), rel=1e-10)


def test_nothing_passes_an_mlps_core_directly(small: tuple[Case, InteractionGraph]) -> None:
    case, graph = small
    assert set(features.direct_effects(case.network, graph.layers[0])[1:]) == {None}


def test_the_direct_path_of_a_transformer_is_its_residual_stream() -> None:
    case = modular_addition()
    layers = interbasis.build(case.network, case.inputs, edge_method=None).graph.layers
    expected = case.weights["unembed.W_U"].T @ layers[1].inverse[1:]  # [outputs, features]
    assert torch.allclose(direct_path(case.network, layers[1]).T[:, 1:], (expected - expected.mean(0))[:, 1:])
    with pytest.raises(interbasis.InterbasisError, match="each of 8 outputs"):
        features.direct_effects(case.network, layers[1], ["a"])
