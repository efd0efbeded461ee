"""Edges and nodes required on the paper's checkpoints, against the authors' stored counts."""

import json

import pytest

import interbasis
from interbasis import modadd

LAYERS = ["ln1.0", "ln2.0", "unembed"]
RUNS = [("lib", 0), ("lib", 1), ("pca", 0), pytest.param(("pca", 1), marks=pytest.mark.slow)]
FULL_SCAN = {0: [14, 17, 9], 1: [9, 12, 10]}
"""Nodes required by trying every number of them; the stored counts are limited by the authors' grid."""


@pytest.fixture(params=RUNS, ids=lambda run: f"{run[0]}-seed{run[1]}")
def run(request, shared, paper_graph):
    kind, seed = request.param
    network = modadd.load(shared / "modadd" / f"seed{seed}.safetensors")
    _, test = modadd.split()
    reference = json.loads((shared / "modadd" / "paper_reference.json").read_text())[f"{kind}_seed{seed}"]
    return network, paper_graph(kind, seed), test, reference, seed


def test_edges_required_to_the_edge(run):
    network, graph, test, reference, _ = run
    found = interbasis.edges_required(network, graph, test, stable=False)
    assert [result.count for result in found] == [reference["edges_required"][name] for name in LAYERS]
    for result in found:
        assert result.value >= reference["edge_threshold_accuracy"] - 1e-12


@pytest.mark.parametrize("run", [("lib", 0), ("lib", 1)], ids=["lib-seed0", "lib-seed1"], indirect=True)
def test_nodes_required(run):
    network, graph, test, _, seed = run
    found = interbasis.nodes_required(network, graph, test, counts=range(1, 20))
    assert [result.count for result in found] == FULL_SCAN[seed]


@pytest.mark.slow
def test_gib_needs_as_few_as_stored(shared, paper_graph):
    network = modadd.load(shared / "modadd" / "seed0.safetensors")
    _, test = modadd.split()
    found = interbasis.edges_required(network, paper_graph("gib", 0), test, sections=[0, 1], stable=False)
    assert [result.count for result in found] == [131, 82]
