"""Modules: planted ones, the null model, cuts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor

import interbasis
from interbasis.analysis.modules.modules import NO_MODULE, find_modules, leiden, modularity
from interbasis.analysis.modules.vertex_cuts import vertex_cuts
from interbasis.analysis.modules.weighted_graph import WeightedGraph
from interbasis.graph.interaction_graph import InteractionGraph


def graph_of(edges: list[torch.Tensor]) -> interbasis.InteractionGraph:
    """A graph with these edges between layers that have a constant each."""
    widths = [edges[0].shape[1], *(len(matrix) for matrix in edges)]
    modules: list[torch.nn.Module] = []
    for one, two in pairwise(widths):
        modules += [torch.nn.Linear(one - 1, two - 1), torch.nn.ReLU()]
    network = interbasis.from_torch(torch.nn.Sequential(*modules[:-1]))
    built = interbasis.build(network, torch.randn(5, widths[0] - 1), basis="neuron", edge_method=None).graph
    return replace(built, edges=edges)


def planted(
    blocks: int = 4, per_layer: int = 6, layers: int = 4, noise: float = 0.15, seed: int = 0
) -> tuple[InteractionGraph, Tensor]:
    """Strong edges within blocks, weaker ones anywhere; the block of every feature."""
    generator = torch.Generator().manual_seed(seed)
    block = torch.arange(blocks).repeat_interleave(per_layer)
    same = block[:, None] == block
    edges = []
    for _ in range(layers - 1):
        size = len(block)
        strong = same & (torch.rand(size, size, generator=generator) < 0.7)
        weak = torch.rand(size, size, generator=generator) < noise
        inner = 0.1 + strong * (5 + 5 * torch.rand(size, size, generator=generator))
        inner = inner + weak * torch.rand(size, size, generator=generator)
        matrix = torch.full((size + 1, size + 1), 20.0)  # the constant's edges are the largest of all
        matrix[1:, 1:] = inner
        edges.append(matrix)
    return graph_of(edges), block


def test_planted_modules_are_recovered() -> None:
    graph, block = planted()
    found = find_modules(graph, [0.2] * 3)
    for assignment in found.assignment:
        assert assignment[0] == NO_MODULE  # the constant
        assert adjusted_mutual_info_score(block, assignment[1:]) >= 0.95
    assert found.modules == 4
    assert sum(found.sizes) == 4 * 24
    assert found.agreement_over_seeds >= 0.95
    assert found.null.z > 5
    assert {row.resolution: row.agreement for row in found.agreement_over_resolutions}[1.0] == pytest.approx(
        1
    )


def test_a_network_with_planted_blocks_through_the_whole_chain() -> None:
    """Two different blocks and noise weights between them, built and grouped."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 6)).double()
    with torch.no_grad():
        for linear in (module[0], module[2]):
            rows, columns = (torch.arange(n) < n // 2 for n in linear.weight.shape)
            linear.weight.mul_(torch.where(rows[:, None] == columns, 3.0, 0.02))
    inputs = torch.randn(4000, 8, dtype=torch.float64)
    graph = interbasis.build(interbasis.from_torch(module), inputs, basis="neuron").graph
    found = find_modules(graph, [0.2, 0.2], null_graphs=0)
    truth = [layer.features - 1 for layer in graph.layers]
    for size, assignment in zip(truth, found.assignment, strict=True):
        assert adjusted_mutual_info_score(np.arange(size) < size // 2, assignment[1:]) >= 0.95


def test_modularity_is_networkx_s() -> None:
    graph, _ = planted(blocks=3, per_layer=3, layers=3)
    weighted = WeightedGraph.from_graph(graph, [0.2] * 2)
    labels = leiden(weighted, 1.0, 0)
    plain = nx.Graph()
    for a, b, w in zip(weighted.sources, weighted.targets, weighted.weights, strict=True):
        plain.add_edge(int(a), int(b), weight=float(w))
    groups = [set(weighted.connected[labels == k].tolist()) for k in range(labels.max() + 1)]
    for resolution in (0.5, 1.0, 2.0):
        expected = nx.community.modularity(plain, groups, weight="weight", resolution=resolution)
        assert modularity(weighted, labels, resolution) == pytest.approx(expected, abs=1e-12)


def test_edges_weigh_the_logarithm_above_epsilon_without_the_constant() -> None:
    edges = torch.tensor([[9.0, 9, 9], [9, 2, 0.5], [9, 8, 1]])
    weighted = WeightedGraph.from_graph(graph_of([edges]), [1.0])
    found = dict(zip(zip(weighted.sources, weighted.targets, strict=True), weighted.weights, strict=True))
    assert found == pytest.approx({(1, 4): np.log(2), (1, 5): np.log(8)})


def test_rewired_graphs_keep_degrees_and_strengths() -> None:
    graph, _ = planted(seed=3)
    weighted = WeightedGraph.from_graph(graph, [0.2] * 3)
    other = weighted.rewire(np.random.default_rng(0))
    assert (other.targets != weighted.targets).mean() > 0.3
    for k in range(3):
        here = weighted.sections == k
        for side in ("sources", "targets"):
            one, two = (np.bincount(getattr(g, side)[here]) for g in (weighted, other))
            assert np.array_equal(one, two)
        pairs = set(zip(other.sources[here].tolist(), other.targets[here].tolist(), strict=True))
        assert len(pairs) == here.sum()  # no edge twice
    strengths = [np.bincount(g.sources, g.weights) for g in (weighted, other)]
    assert strengths[0] == pytest.approx(strengths[1])


def test_shuffled_graphs_are_not_called_modular() -> None:
    graph, _ = planted(blocks=3, per_layer=4, layers=3, noise=0.4)
    whole = WeightedGraph.from_graph(graph, [0.2] * 2)
    generator = np.random.default_rng(7)
    below = 0
    for seed in range(20):
        shuffled = whole.rewire(generator)
        matrices = [torch.full_like(edges, 0.1) for edges in graph.edges]
        for a, b, w, k in zip(
            shuffled.sources, shuffled.targets, shuffled.weights, shuffled.sections, strict=True
        ):
            matrices[k][b - whole.offsets[k + 1], a - whole.offsets[k]] = 0.2 * np.exp(w)
        found = find_modules(
            replace(graph, edges=matrices), [0.2] * 2, seed=seed, seeds=0, resolutions=(), null_graphs=25
        )
        below += abs(found.null.z) < 2
    assert below >= 18


def partition() -> list[Any]:
    graph, _ = planted(noise=0.5, seed=5)
    found = find_modules(graph, [0.3] * 3, seed=11, seeds=0, null_graphs=3)
    return [[layer.tolist() for layer in found.assignment], [found.null.mean, found.null.deviation]]


def test_two_processes_find_the_same() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    code = "import json, test_modules; print(json.dumps(test_modules.partition()))"
    command = [sys.executable, "-c", code]
    other = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert json.loads(other) == partition()


def test_leidenalg_agrees() -> None:
    pytest.importorskip("leidenalg")
    graph, _ = planted()
    found = find_modules(graph, [0.2] * 3, seeds=0, null_graphs=0, cross_check=True)
    theirs, agreement = found.leidenalg.modularity, found.leidenalg.agreement
    assert theirs == pytest.approx(found.modularity, abs=0.01)
    assert agreement >= 0.95


def test_vertex_cuts_are_minimal() -> None:
    """Two stars that meet in two features of the middle layer."""
    first, second = torch.full((8, 7), 0.1), torch.full((7, 8), 0.1)
    first[1:4, 1:4] = 5
    first[5:8, 4:7] = 5
    second[1:4, 1:4] = 5
    second[4:7, 5:8] = 5
    second[4:6, 3] = 2  # two edges between the groups, both from one feature
    graph = graph_of([first, second])
    found = find_modules(graph, [1.0, 1.0], seeds=0, null_graphs=0)
    assert found.modules == 2
    (cut,) = vertex_cuts(graph, found)
    assert cut.features == (("linear.1", 3),)


def test_vertex_cuts_are_networkx_s() -> None:
    graph, _ = planted(blocks=3, per_layer=4, layers=3, noise=0.2, seed=1)
    found = find_modules(graph, [0.2] * 2, seeds=0, null_graphs=0, resolutions=())
    weighted, labels = (
        WeightedGraph.from_graph(graph, [*found.epsilons.values()]),
        np.concatenate(found.assignment),
    )
    cuts = vertex_cuts(graph, found)
    assert len(cuts) == found.modules * (found.modules - 1) // 2 > 2
    for cut in cuts:
        flow = nx.DiGraph()
        for node in weighted.connected.tolist():
            flow.add_edge(("in", node), ("out", node), capacity=1)
            if labels[node] == cut.modules[0]:
                flow.add_edge("source", ("in", node))
            elif labels[node] == cut.modules[1]:
                flow.add_edge(("out", node), "sink")
        for a, b in zip(weighted.sources.tolist(), weighted.targets.tolist(), strict=True):
            flow.add_edge(("out", a), ("in", b))
            flow.add_edge(("out", b), ("in", a))
        size, (reached, _) = nx.minimum_cut(flow, "source", "sink")
        expected = [
            n for n in weighted.connected.tolist() if ("in", n) in reached and ("out", n) not in reached
        ]
        offsets = dict(zip(found.layers, weighted.offsets, strict=False))
        assert [offsets[layer] + index for layer, index in cut.features] == expected
        assert len(cut.features) == size > 0


def test_bad_requests_get_a_sentence() -> None:
    graph, _ = planted(layers=2)
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: find_modules(graph, [1.0, 2.0]), "each of the 1 sections"),
        (lambda: find_modules(graph, [0.0]), "above 0"),
        (lambda: find_modules(graph, [1e9]), "nothing to group"),
        (lambda: find_modules(graph, [0.2], resolution=0), "expected a resolution above 0"),
        (lambda: find_modules(replace(graph, edges=[])), "no edges"),
    )
    for call, reason in calls:
        with pytest.raises(interbasis.InterbasisError, match=reason):
            call()
