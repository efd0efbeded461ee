"""Edges at some positions of every sequence: closed forms with an error, and no more of the network."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from cases import normal
from interbasis import LayerBasis, Network, build
from interbasis.data import Batches
from interbasis.lib.edges import Edges, EdgeSettings, measure
from interbasis.models.sequential import RowPrefix
from interbasis.network.cores import Linear, Normalize, Variance
from interbasis.network.network import NodeLayer, Section
from interbasis.numerics.integration import rule
from interbasis.numerics.random_signs import Sources
from reference import relative_error
from tiny_models import random_model, tokens

SEEDS = 400


class Identity(RowPrefix):
    """A prefix that takes activations as they are."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def norm_network(kind: str) -> tuple[Network, list[LayerBasis], torch.Tensor]:
    """One section with closed-form squares on 6 sequences of 24 positions."""
    cores = {"linear": (Linear(), 0, 0), "variance": (Variance(4), 4, 1), "normalize": (Normalize(0.1), 5, 4)}
    core, inputs, outputs = cores[kind]
    read = normal(inputs, 6, seed=3)
    if kind == "normalize":
        read[0] = torch.tensor([1.5, 0.2, 0, 0, 0.1, 0])  # of the variance, in three of the features
    matrices = normal(5, 6, seed=4), read, normal(5, outputs, seed=5)
    section = Section(NodeLayer("in", 6), NodeLayer("out", 5), *matrices, core)
    data = normal(6, 24, 6, seed=31)
    data[..., 0] = 1
    layers = [
        LayerBasis(node.name, torch.eye(node.width).double(), torch.eye(node.width).double())
        for node in (section.source, section.target)
    ]
    return Network(Identity([], 5, torch.float64), (section,)), layers, data


def estimate(
    network: Network, layers: list[LayerBasis], data: Tensor | list[Any], sources: Sources | None
) -> Edges:
    return measure(network, layers, Batches(data), EdgeSettings(rule(), sources))[0].edges


@pytest.mark.parametrize("kind", ["linear", "variance", "normalize"])
def test_closed_forms_at_sampled_positions_are_unbiased_and_their_error_is_right(kind: str) -> None:
    """Mean of Ê² over the seeds within 3.5 standard errors; the reported error is no less than the actual."""
    network, layers, data = norm_network(kind)
    exact = estimate(network, layers, data, None).rms
    found = [
        estimate(network, layers, data, Sources("positions", 1, seed, positions=8)) for seed in range(SEEDS)
    ]
    squares = torch.stack([e.rms.square() for e in found])
    varies = squares.std(0) > 1e-9 * exact.max() ** 2  # all but the constant's, if nothing bends its path
    assert torch.allclose(squares.mean(0)[~varies], exact.square()[~varies], rtol=1e-10)
    z = (squares.mean(0) - exact.square())[varies].abs() / (squares.std(0)[varies] / SEEDS**0.5)
    assert z.max() < 3.5
    ratio = reported_over_actual(found)[varies]
    assert ratio.min() > 0.85
    assert ratio.max() < 2


def reported_over_actual(found: list[Any]) -> torch.Tensor:
    """Standard errors of Ê²; that of Ê follows from them for small ones, σ(Ê²) = 2Ê σ(Ê)."""
    reported = torch.stack([(2 * e.rms * e.error).square() for e in found]).mean(0).sqrt()
    return reported / torch.stack([e.rms.square() for e in found]).std(0)


@pytest.mark.parametrize("kind", ["linear", "variance", "normalize"])
def test_an_odd_number_of_positions_and_a_single_one_promise_no_less_than_their_error(kind: str) -> None:
    network, layers, data = norm_network(kind)
    for positions in (1, 5):
        sources = [Sources("positions", 1, seed, positions) for seed in range(SEEDS)]
        ratio = reported_over_actual([estimate(network, layers, data, some) for some in sources])
        assert ratio[:, 1:].min() > 0.85


@pytest.mark.parametrize("kind", ["linear", "variance", "normalize"])
def test_as_many_positions_as_there_are_is_exact(kind: str) -> None:
    network, layers, data = norm_network(kind)
    found = estimate(network, layers, data, Sources("positions", 1, 0, positions=24))
    assert relative_error(found.rms, estimate(network, layers, data, None).rms) <= 1e-12
    assert found.error.max() == 0


@pytest.mark.parametrize("kind", ["linear", "variance", "normalize"])
def test_closed_forms_do_not_depend_on_batches(
    kind: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    network, layers, data = norm_network(kind)
    for sources in (None, Sources("positions", 1, 3, positions=8)):
        whole = estimate(network, layers, data, sources)
        with monkeypatch.context() as patch:
            patch.setattr("interbasis.network.cores.squares.MAX_ELEMENTS", 1)
            patch.setattr("interbasis.compute.executor.FINE_CHUNK_BYTES", 1)
            parts = estimate(network, layers, list(data.split(4)), sources)
        assert relative_error(parts.rms, whole.rms) <= 1e-12
        if sources is not None:
            assert relative_error(parts.error, whole.error) <= 1e-10


SAMPLED: dict[str, Any] = {
    "edge_group": "positions",
    "edge_sources": 1,
    "edge_positions": 3,
    "dtype": "float64",
}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_no_more_of_the_network_than_needed_gives_the_same_edges(name: str) -> None:
    """Beside a limit that no token exceeds, which has the network run everywhere."""
    network, data = interbasis.from_hf(random_model(name)), tokens(5, 8)
    everywhere = build(network, data, norm_limit=1e9, **SAMPLED).graph
    for cache in (0, 1):
        graph = build(network, data, norm_limit=0, cache_gigabytes=cache, **SAMPLED).graph
        for kind in ("edges", "edge_errors"):
            pairs = zip(getattr(graph, kind), getattr(everywhere, kind), strict=True)
            assert max(relative_error(mine, theirs) for mine, theirs in pairs) <= 1e-9


def test_positions_that_nobody_reads_are_not_computed() -> None:
    """After every attention the network runs at the sampled positions alone, from stored activations on."""
    network, ran = counting(interbasis.from_hf(random_model("gpt2")))
    blocks = sum(name.startswith("attn_in.") for name in network.layers)
    build(network, tokens(2, 8), norm_limit=0, **SAMPLED)
    after = {(name, length) for name, length in ran if name.startswith(("ln2.", "mlp_in."))}
    assert blocks > 1
    assert {("ln2.0", 3), (f"ln2.{blocks - 1}", 3)} <= after
    edges = ran[len(ran) - 1 - ran[::-1].index(("ln1.0", 8)) :]
    assert {length for name, length in edges if name.startswith("ln2.")} == {3}
    assert {length for name, length in edges if name.startswith("ln1.")} == {8}


def counting(network: Network) -> tuple[Network, list[tuple[str, int]]]:
    """The network, and which sections ran at how many positions."""
    ran: list[tuple[str, int]] = []

    def of(section: Section) -> Section:
        def call(self: Any, f: Tensor) -> Tensor:
            ran.append((self.source.name, f.shape[1]))
            return super(type(self), self).__call__(f)

        counting = type("Counting", (type(section),), {"__call__": call})
        return counting(**{name: getattr(section, name) for name in section.__dataclass_fields__})

    return replace(network, sections=tuple(of(section) for section in network.sections)), ran


@pytest.mark.parametrize("settings", [{}, SAMPLED, {"edge_group": 5, "edge_sources": 2}])
def test_features_that_are_filled_up_change_nothing(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis.network import network as sections

    network, data = interbasis.from_hf(random_model("gpt2")).to(torch.float64), tokens(5, 8)
    plain = build(network, data, **settings).graph
    monkeypatch.setattr(sections, "MIN_ALIGNED_WIDTH", 1)
    aligned = build(network, data, **settings).graph
    for kind in ("edges", "edge_errors"):
        for mine, theirs in zip(getattr(aligned, kind), getattr(plain, kind), strict=True):
            assert mine.shape == theirs.shape
            assert relative_error(mine, theirs) <= 1e-10
