"""Edges and nodes required on the paper's checkpoints, against the authors' stored counts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interbasis import InteractionGraph, modadd
from interbasis.analysis.ablation.search import edges_required, nodes_required
from interbasis.data.modadd import Labelled
from interbasis.network.network import Network

LAYERS = ["ln1.0", "ln2.0", "unembed"]
SLOW_RUNS = [("lib", 0), ("pca", 0), ("pca", 1)]
RUNS = [("lib", 1), *(pytest.param(run, marks=pytest.mark.slow) for run in SLOW_RUNS)]
FULL_SCAN = {0: [14, 17, 9], 1: [9, 12, 10]}
"""Nodes required by trying every number of them; the stored counts are limited by the authors' grid."""
PaperRun = tuple[Network, InteractionGraph, Labelled, dict[str, Any], int]
"""A network, its graph, the test data, the stored counts, the seed."""


def named(run: tuple[str, int]) -> str:
    return f"{run[0]}-seed{run[1]}"


@pytest.fixture(params=RUNS, ids=named)
def run(
    request: pytest.FixtureRequest, shared: Path, paper_graph: Callable[..., InteractionGraph]
) -> PaperRun:
    kind, seed = request.param
    network = modadd.load(shared / "modadd" / f"seed{seed}.safetensors")
    _, test = modadd.split()
    reference = json.loads((shared / "modadd" / "paper_reference.json").read_text())[f"{kind}_seed{seed}"]
    return network, paper_graph(kind, seed), test, reference, seed


def test_edges_required_to_the_edge(run: PaperRun) -> None:
    network, graph, test, reference, _ = run
    found = edges_required(network, graph, test, stable=False)
    assert [result.count for result in found] == [reference["edges_required"][name] for name in LAYERS]
    for result in found:
        assert result.value >= reference["edge_threshold_accuracy"] - 1e-12


@pytest.mark.parametrize("run", [("pca", 0)], ids=named, indirect=True)
def test_edges_required_in_another_basis(run: PaperRun) -> None:
    """All sections but the MLP, which is slow."""
    network, graph, test, reference, _ = run
    found = edges_required(network, graph, test, sections=[0, 2], stable=False)
    assert [result.count for result in found] == [reference["edges_required"][LAYERS[k]] for k in (0, 2)]


@pytest.mark.parametrize(
    "run", [pytest.param(("lib", 0), marks=pytest.mark.slow), ("lib", 1)], ids=named, indirect=True
)
def test_nodes_required(run: PaperRun) -> None:
    network, graph, test, _, seed = run
    expected = FULL_SCAN[seed]
    found = nodes_required(network, graph, test, counts=range(1, max(expected) + 1))
    assert [result.count for result in found] == expected


@pytest.mark.slow
def test_gib_needs_as_few_as_stored(shared: Path, paper_graph: Callable[..., InteractionGraph]) -> None:
    network = modadd.load(shared / "modadd" / "seed0.safetensors")
    _, test = modadd.split()
    found = edges_required(network, paper_graph("gib", 0), test, sections=[0, 1], stable=False)
    assert [result.count for result in found] == [131, 82]
