"""Builds within a limit on memory."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import interbasis
from graphs import tensors_of
from interbasis.base.errors import InterbasisError
from interbasis.base.memory import limited_workspace, resident_bytes
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import StoredBasis
from interbasis.graph.settings import BuildConfig
from interbasis.graph.store import load
from interbasis.lib import build as building
from interbasis.lib import memory
from interbasis.lib.drawn_rounds import measure_edges
from interbasis.lib.memory import MemoryPlan, SectionMemory, window_bytes
from interbasis.lib.window import BuiltWindow
from interbasis.network.cores import slope_moments
from interbasis.network.network import Network
from tiny_models import random_model

TOKENS = torch.arange(45).view(5, 9) * 7 % 23
CLOSE = 1e-10


@pytest.fixture(scope="module")
def network() -> Network:
    return interbasis.from_hf(random_model("llama"))


@pytest.fixture
def few_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of at most five sections, small chunks and small blocks."""

    def within(limit: float, network: Network, tokens: Tensor, config: BuildConfig) -> MemoryPlan:
        memory.check_windows(network, config, 1e9)
        ends = [0, *range(3, len(network.sections), 5), len(network.sections)]
        return MemoryPlan(tuple(itertools.pairwise(ends)), 2**16, 2**15)

    monkeypatch.setattr(MemoryPlan, "within", within)


def assert_equal(one: InteractionGraph, other: InteractionGraph) -> None:
    a, b = tensors_of(one), tensors_of(other)
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.allclose(tensor, b[name], rtol=CLOSE, atol=CLOSE * tensor.abs().max().item()), name


@pytest.mark.parametrize(
    ("settings", "cached"),
    [
        ({}, True),
        ({"edge_group": 6, "edge_positions": 4}, False),
        ({"basis": "random", "edge_method": "none"}, True),
        ({"basis": "pca", "edge_method": "none"}, False),
        ({"basis": "neuron", "edge_method": "none"}, True),
    ],
    ids=["lib", "signed edges", "random", "pca", "neuron"],
)
def test_windows_give_the_same_graph(
    network: Network, settings: dict[str, Any], cached: bool, few_sections: None, tmp_path: Path
) -> None:
    whole = interbasis.build(network, TOKENS, dtype="float64", **settings).graph
    folder = tmp_path if cached else None
    cut = interbasis.build(
        network, TOKENS, dtype="float64", memory=1, resume=folder, cache_gigabytes=float(cached), **settings
    ).graph
    assert_equal(whole, cut)
    stored = [isinstance(layer, StoredBasis) for layer in cut.layers]
    assert any(stored) == (cached and settings.get("basis") != "neuron")


def test_windows_resume_and_a_saved_graph_is_the_same(
    network: Network, few_sections: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"dtype": "float64", "memory": 1, "resume": tmp_path, "basis": "pca"}
    calls = []
    real = measure_edges

    def measure(*args: Any) -> BuiltWindow:
        calls.append(len(args[0].network.sections))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(building, "measure_edges", measure)
    with pytest.raises(KeyboardInterrupt):
        interbasis.build(network, TOKENS, **settings)
    graph = interbasis.build(network, TOKENS, **settings).graph
    sections = len(network.sections)
    assert sum(calls[:2]) + sum(calls[3:]) == sections  # the first two windows were not measured again
    before = list(tensors_of(graph).values())
    graph.save(tmp_path)
    assert not (tmp_path / ".resume").exists()
    again = load(tmp_path)
    assert all(torch.equal(t, other) for t, other in zip(tensors_of(again).values(), before, strict=True))


def test_padded_samples_in_windows(network: Network, few_sections: None) -> None:
    from interbasis.data.samples import Samples

    lengths = torch.tensor([9, 9, 4, 4, 7])
    labels = torch.zeros(5, dtype=torch.int64)
    data = Samples(5, lambda a, b: (TOKENS[a:b], labels[a:b]), "tokens", lengths=lengths)
    settings: dict[str, Any] = {"dtype": "float64", "edge_method": "none"}
    whole = interbasis.build(network, data, **settings).graph
    assert_equal(whole, interbasis.build(network, data, memory=1, **settings).graph)


@pytest.mark.parametrize("settings", [{"basis": "gib"}, {"jacobian_queries": 4}])
def test_what_requires_all_sections_is_refused(
    network: Network, settings: dict[str, Any], few_sections: None
) -> None:
    with pytest.raises(InterbasisError, match="cannot be built in parts"):
        interbasis.build(network, TOKENS, memory=1, **settings)


def test_too_little_memory_is_refused_with_numbers(network: Network) -> None:
    with pytest.raises(InterbasisError, match=r"too little for section .* about .* --memory"):
        interbasis.build(network, TOKENS, memory=10**6)
    with pytest.raises(InterbasisError, match="expected an amount of memory"):
        interbasis.build(network, TOKENS, memory=0)


def test_a_limit_with_room_builds_everything_together(network: Network) -> None:
    limit = resident_bytes() + 2 * 10**9
    config = BuildConfig(dtype="float32")
    plan = MemoryPlan.within(limit, network, TOKENS.numel(), config)
    assert plan.windows == ((0, len(network.sections)),)
    assert plan.peak <= limit


def test_windows_grow_with_the_limit(network: Network) -> None:
    config = BuildConfig(dtype="float64")
    sections = [SectionMemory.from_section(section, 45, 8, config) for section in network.sections]
    alone = max(window_bytes([section]) for section in sections)
    numbers = []
    for factor in (1.0, 2.0, 1e4):
        held = memory.block_bytes(network) + resident_bytes()
        least = memory.COPIES_OF_A_CHUNK * memory.MIN_CHUNK_BYTES
        least += memory.COPIES_OF_WORKSPACE * memory._least_workspace(network, 8)
        limit = (
            int((held + least + factor * alone) / (1 - memory.RESERVE)) + 2**20
        )  # what this test itself adds meanwhile
        windows = MemoryPlan.within(limit, network, 45, config).windows
        assert [first for first, _ in windows[1:]] == [last for _, last in windows[:-1]]
        numbers.append(len(windows))
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[-1] == 1


def test_small_blocks_of_attention_give_the_same_sums(network: Network) -> None:
    core: Any = next(s for s in network.double().sections if s.core.mixes_positions)
    f = network.double().activations(TOKENS)[network.layers.index(core.source.name)]
    u, metric = core.read_outs(f), core.write.T @ core.write
    wanted = core.core.sums_at(u, torch.arange(9).expand(5, -1), metric)
    with limited_workspace(64):
        found = core.core.sums_at(u, torch.arange(9).expand(5, -1), metric)
    for name, total in wanted.items():
        assert torch.allclose(total, found[name], rtol=CLOSE, atol=CLOSE), name


@pytest.mark.parametrize("core", ["Elementwise", "Gated"])
def test_rows_of_wide_cores_give_the_same_moments(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from interbasis.network import cores

    torch.manual_seed(0)
    made = getattr(cores, core)(torch.nn.SiLU())
    width = 14 if core == "Gated" else 7
    u = torch.randn(20, 1, width, dtype=torch.float64)
    root, read = torch.randn(7, 7, dtype=torch.float64), torch.randn(width, 5, dtype=torch.float64)
    moments = made.moments(made.statistics(u, slice(0, 1)), root @ root.T)
    wanted = moments.written(root), moments.between(read), moments.diagonal(), moments.gram
    monkeypatch.setattr(slope_moments, "MAX_DENSE_WIDTH", 3)
    monkeypatch.setattr(slope_moments, "ROWS_PER_TILE", 4)
    moments = made.moments(made.statistics(u, slice(0, 1)), root @ root.T)
    for found, expected in zip(
        (moments.written(root), moments.between(read), moments.diagonal(), moments.gram), wanted, strict=True
    ):
        assert torch.allclose(found, expected, rtol=CLOSE, atol=CLOSE)
