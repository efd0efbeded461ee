"""Λ and Ê over samples that were drawn: unbiased, with errors against the exact values on the same data."""

from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from interbasis import build
from interbasis.data import Batches
from interbasis.graph.precision import edge_error, eigenvalue_error
from interbasis.lib.edges import drawn_share, edges
from interbasis.network.network import Network

pytest.importorskip("transformers")
from tiny_models import random_model, tokens

SEEDS = range(16)
EXACT_EDGES: dict[str, Any] = {"dtype": "float64", "norm_limit": 0}
DRAWN: dict[str, Any] = {"jacobian_samples": 16, "edge_samples": 16, "dtype": "float64", "norm_limit": 0}


@pytest.fixture(scope="module")
def network() -> Network:
    return interbasis.from_hf(random_model("gpt2"))


@pytest.fixture(scope="module")
def data() -> Tensor:
    return tokens(40, 8)


def root_mean_square(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(values).square().mean(0).sqrt()


@pytest.mark.parametrize(
    "scheme",
    [
        {},
        {"edge_group": "positions"},
        {"edge_group": "positions", "edge_samples": 60},
        pytest.param({"edge_group": "positions", "edge_positions": 4}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_errors_of_edges_are_those_against_exact_edges_between_the_same_features(
    network: Network, data: Tensor, scheme: dict[str, Any]
) -> None:
    """Root mean square over seeds, section by section: reported within 25 % of actual, no bias of Ê²."""
    graphs = [
        build(network, data, basis="pca", **(DRAWN | scheme | {"jacobian_samples": None}), seed=seed).graph
        for seed in SEEDS
    ]
    true = edges(network, graphs[0].layers, data)
    for k, expected in enumerate(true):
        squares = torch.stack([graph.edges[k].double().square() for graph in graphs])
        carrying = (expected.square() > expected.square().max() / 100) & (squares.std(0) > 1e-9 * squares[0])
        actual = (squares - expected.square()).square().mean(0).sqrt()[carrying]
        reported = root_mean_square([2 * g.edges[k].double() * g.edge_errors[k].double() for g in graphs])
        if not len(actual):
            continue
        ratio = (reported[carrying] / actual).median()
        assert 0.75 < ratio < 1.3, (k, ratio)
        z = (squares.mean(0) - expected.square())[carrying] / (actual / len(SEEDS) ** 0.5)
        assert z.square().mean() < 2.5, k


@pytest.mark.parametrize(
    "drawn",
    [
        pytest.param({"jacobian_samples": 16}, marks=pytest.mark.slow),
        {"jacobian_samples": 16, "jacobian_queries": 4},
        {"statistics_samples": 20},
        pytest.param(
            {"statistics_samples": 10, "jacobian_samples": 6, "jacobian_queries": 4}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_errors_of_eigenvalues_are_those_against_an_exact_build(
    network: Network, data: Tensor, drawn: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"edge_method": None, "dtype": "float64", "norm_limit": 0}
    exact = build(network, data, **settings).graph.layers
    graphs = [build(network, data, **settings, **drawn, seed=seed).graph for seed in SEEDS]
    ratios = []
    for k, layer in enumerate(exact):
        degrees = graphs[0].config.eigenvalue_degrees
        reported = [eigenvalue_error(graph.layers[k], degrees) for graph in graphs]
        if reported[0] is None:
            assert all(torch.equal(graph.layers[k].transform, layer.transform) for graph in graphs[:1])
            continue
        leading = slice(1 + layer.isolated, 4 + layer.isolated)
        Λ = layer.eigenvalues[leading]
        actual = [(graph.layers[k].eigenvalues[leading] - Λ) / Λ for graph in graphs]
        claimed = [graph.layers[k].eigenvalue_errors[leading] / Λ for graph in graphs]
        ratios.append((root_mean_square(claimed).mean() / root_mean_square(actual).mean()).item())
        assert 0.5 < ratios[-1] < 2, (k, ratios)
    assert 0.75 < sum(ratios) / len(ratios) < 1.35


def test_rounds_and_processes_give_the_bits_of_the_settings_that_they_end_with(
    network: Network, data: Tensor
) -> None:
    rounds = build(network, data, **(DRAWN | {"edge_samples": (4, 16)})).graph
    again = build(network, data, **(DRAWN | {"edge_samples": [4, 16]})).graph
    assert all(map(torch.equal, rounds.edges, again.edges))
    whole = build(network, data, **DRAWN).graph
    for one, other in zip(rounds.edges, whole.edges, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=0)
    for one, other in zip(rounds.edge_errors, whole.edge_errors, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-12)


def test_samples_that_are_drawn_again_have_other_signs(network: Network, data: Tensor) -> None:
    """Two rounds over all 40 samples: the mean of both, which differ, and an error without differences
    between samples."""
    signed = DRAWN | {"basis": "pca", "jacobian_samples": None, "edge_group": "positions"}
    once, twice = (build(network, data, **(signed | {"edge_samples": n})).graph for n in (40, (40, 80)))
    true = edges(network, once.layers, data)
    for k, expected in enumerate(true):
        first, both = (graph.edges[k].double().square() for graph in (once, twice))
        second = 2 * both - first
        if once.edge_errors[k].max() == 0:  # exact in one round
            assert torch.allclose(first, second, rtol=1e-9, atol=1e-15)
            continue
        assert (second > -1e-12).all()  # a mean of squares itself
        deviations = [(squares - expected.square()).norm() for squares in (first, second, both)]
        assert deviations[2] < 0.9 * max(deviations[:2])
        assert twice.edge_errors[k].norm() < 0.85 * once.edge_errors[k].norm()


@pytest.mark.parametrize(("draws", "left"), [(10, 0.75), (40, 0.0), (60, 1 / 6), (80, 0.0), (100, 0.1)])
def test_share_of_the_differences_between_samples(draws: int, left: float) -> None:
    """1 − f is the variance of the average over draws, in units of a sample's over draws: by counting."""
    counts = torch.bincount(torch.arange(draws) % 40, minlength=40).double()
    by_counting = draws * (counts / draws - 1 / 40).square().sum().item()
    assert 1 - drawn_share(draws, 40) == pytest.approx(by_counting) == pytest.approx(left)


def test_statistics_of_drawn_samples_are_those_of_a_build_on_them(network: Network, data: Tensor) -> None:
    """Means are the drawn samples' own; Λ differs from theirs in second order of the groups' deviations."""
    drawn = build(network, data, statistics_samples=30, **EXACT_EDGES).graph
    chosen = Batches(data).drawn(30, drawn.config.seed).between(0, 30)
    alone = build(network, chosen, **EXACT_EDGES).graph
    for layer, other in zip(drawn.layers, alone.layers, strict=True):
        assert torch.allclose(layer.mean, other.mean, rtol=1e-10, atol=1e-12)
        if layer.eigenvalue_errors is not None:
            leading = slice(layer.first_feature, layer.first_feature + 4)
            difference = (layer.eigenvalues - other.eigenvalues).abs()[leading]
            assert difference.norm() < layer.eigenvalue_errors[leading].norm() / 2, layer.name
    assert not drawn.edge_errors  # all samples, between these features
    expected = edges(network, drawn.layers, data)
    for found, true in zip(drawn.edges, expected, strict=True):
        assert torch.allclose(found, true, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"statistics_samples": 40}, "statistics_samples.* 40"),
        ({"statistics_samples": 8, "basis": "gib"}, "statistics_samples.*'gib'"),
        ({"statistics_samples": 8, "jacobian_data": tokens(4, 8)}, "statistics_samples.*jacobian_data"),
    ],
    ids=["all", "gib", "other data"],
)
def test_statistics_that_cannot_be_drawn_are_refused(
    network: Network, data: Tensor, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(interbasis.InterbasisError, match=words):
        build(network, data, edge_method=None, **settings)


def test_all_samples_are_exact(network: Network, data: Tensor) -> None:
    exact = build(network, data, dtype="float64", norm_limit=0).graph
    drawn = build(network, data, **(DRAWN | {"jacobian_samples": 40, "edge_samples": 40})).graph
    for one, other in zip(exact.edges, drawn.edges, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
    assert max(map(torch.max, drawn.edge_errors)) == 0
    assert all(layer.eigenvalue_errors is None for layer in drawn.layers)


def test_samples_drawn_are_nested_and_keep_their_lengths() -> None:
    batches = Batches(torch.arange(30)[:, None])
    many, few = (batches.drawn(count, seed=3).between(0, count).flatten().tolist() for count in (20, 7))
    assert many[:7] == few
    assert len(set(many)) == 20
    assert batches.drawn(50, seed=3).between(30, 50).flatten().tolist() == many  # again
    rows: Any = torch.arange(30)[:, None]
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    assert Batches(loader).drawn(7, seed=3).between(0, 7).flatten().tolist() == few


def test_errors_are_medians_over_what_carries_nine_tenths(network: Network, data: Tensor) -> None:
    graph = build(network, data, **DRAWN).graph
    ends = graph.layers[:2]
    inner, errors = graph.edges[0][1:, 1:].flatten(), graph.edge_errors[0][1:, 1:].flatten()
    order = inner.argsort(descending=True)
    carried = inner[order].square().cumsum(0) < 0.9 * inner.square().sum()
    leading = order[: 1 + int(carried.sum())]
    expected = (errors[leading] / inner[leading]).median().item()
    assert edge_error(graph.edges[0], graph.edge_errors[0], *ends) == pytest.approx(expected)
