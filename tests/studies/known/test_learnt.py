"""What is the same is found to be the same."""

import pytest
import torch

import interbasis
from interbasis.analysis.ablation.robust import Attack
from interbasis.analysis.modules.modules import find_modules
from interbasis.analysis.modules.weighted_graph import WeightedGraph
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis_studies.known import PlantedSpec, fit, plant
from interbasis_studies.known.scores import leiden_with_count
from interbasis_studies.known.truth import KnownNetwork
from learnt_measures import edge_counts, halves, network_answers, shared

SPEC = PlantedSpec(parts=2, size=3, hidden=6, depth=1, samples=300)


@pytest.fixture(scope="module")
def fitted() -> tuple[KnownNetwork, InteractionGraph, ModulesResult]:
    known = plant(SPEC)
    graph = fit(known, "lib")
    return known, graph, find_modules(graph, seeds=0, null_graphs=0, resolutions=())


def test_a_graph_is_like_itself_and_unlike_another(
    fitted: tuple[KnownNetwork, InteractionGraph, ModulesResult],
) -> None:
    known, graph, modules = fitted
    network = known.network
    same = shared((network, network), (graph, graph), known.inputs, (modules, modules))
    assert same.features == pytest.approx(1, abs=1e-10)
    assert same.modules == pytest.approx(1)
    other = fit(known, "random")
    theirs = find_modules(other, seeds=0, null_graphs=0, resolutions=())
    assert shared((network, network), (graph, other), known.inputs, (modules, theirs)).features < 0.9
    assert 0.5 < halves(network, known.inputs, known.inputs).features <= 1


def test_robust_counts_are_no_smaller(fitted: tuple[KnownNetwork, InteractionGraph, ModulesResult]) -> None:
    known, graph, _ = fitted
    inputs, answers = network_answers(known.network, known.inputs[:100])
    assert torch.equal(answers, known.network(inputs).argmax(-1))
    counts = edge_counts(known.network, graph, (inputs, answers), 0.05, Attack(steps=2, starts=1, samples=20))
    assert 0 < counts.plain <= counts.robust <= 1


def test_leiden_finds_as_many_modules_as_it_is_told(
    fitted: tuple[KnownNetwork, InteractionGraph, ModulesResult],
) -> None:
    known, _, _ = fitted
    weighted = WeightedGraph.from_graph(fit(known, "ceiling"))
    for count in (2, 4):
        labels = leiden_with_count(weighted, count, seed=0)
        assert len(set(labels.tolist())) == count
    assert isinstance(known.network, interbasis.Network)
