"""Curves of the metric, areas, intervals, sparsity measures, controls and stress."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import CASES, mlp
from interbasis.analysis.ablation import bootstrap
from interbasis.analysis.ablation.controls import reinitialised, shuffled, stress, with_predicted_labels
from interbasis.analysis.ablation.curves import interaction_sparsity, normalised, sparsity_curves
from interbasis.analysis.ablation.evaluation import Evaluation, Score
from interbasis.analysis.ablation.masked_pass import ablate_edges, top_edges
from interbasis.analysis.stages.curves import CurvesResult
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis.run.run import open_run
from interbasis.show.result_tables import curve_tables
from small_runs import control_rows


@pytest.fixture(scope="module")
def solved() -> tuple[Network, InteractionGraph, tuple[Tensor, Tensor]]:
    case = mlp(nn.ReLU(), widths=(6, 9, 7, 4), samples=60)
    with torch.no_grad():  # answers that differ
        case.original[-1].bias -= case.original(case.inputs).mean(0)
    network = interbasis.from_torch(case.original)
    data = (case.inputs, network(case.inputs).argmax(-1))
    return network, interbasis.build(network, case.inputs).graph, data


def accuracy(
    network: Network, graph: InteractionGraph, data: tuple[Tensor, Tensor], masks: dict[Any, Any]
) -> float:
    outputs = ablate_edges(network, graph, data[0], masks)
    return (outputs.argmax(-1) == data[1]).double().mean().item()


def test_values_counts_and_areas(solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]]) -> None:
    network, graph, data = solved
    fractions = (0.05, 0.2, 0.5, 1.0)
    found = sparsity_curves(network, graph, data, fractions=fractions)
    assert found.baseline == 1.0
    assert list(found.sections) == graph.section_names
    widths = graph.provenance.widths
    for k, curve in enumerate([*found.sections.values(), found.whole]):
        sections = [k] if k < 3 else [0, 1, 2]
        counts = {s: [round(x * widths[s + 1] * (widths[s] - 1)) for x in (0, *fractions)] for s in sections}
        counts = {s: [min(n, graph.inner_edges(s).numel()) for n in row] for s, row in counts.items()}
        assert list(curve.counts) == [sum(counts[s][i] for s in sections) for i in range(1, 5)]
        values = [
            accuracy(network, graph, data, {s: top_edges(graph.edges[s], counts[s][i]) for s in sections})
            for i in range(5)
        ]
        assert curve.without_edges == pytest.approx(values[0])
        assert list(curve.values) == pytest.approx(values[1:])
        faithfulness = (np.array(values) - values[0]) / (1 - values[0])
        ks = np.array([0, *fractions])
        assert curve.area == pytest.approx(np.trapezoid(faithfulness, ks))
        assert curve.distance == pytest.approx(np.trapezoid(np.abs(1 - faithfulness), ks))
        assert curve.area_interval[0] <= curve.area <= curve.area_interval[1]
        assert all(a <= v <= b for v, (a, b) in zip(curve.values, curve.value_intervals, strict=True))
        assert curve.faithfulness[-1] == pytest.approx(1)


def test_a_random_ranking_is_worse(solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]]) -> None:
    network, graph, data = solved
    ranking = [torch.rand(edges.shape, generator=torch.Generator().manual_seed(0)) for edges in graph.edges]
    random = sparsity_curves(network, graph, data, ranking=ranking)
    assert random.whole.area < sparsity_curves(network, graph, data).whole.area


def test_the_bootstrap_knows_the_standard_error() -> None:
    generator = torch.Generator().manual_seed(1)
    wrong = (torch.rand(400, generator=generator) < 0.2).double()
    score = Score("accuracy", wrong, torch.ones(400, dtype=torch.float64))
    draws = torch.cat(list(bootstrap.resampled([score, score], 1000, seed=2)))
    assert torch.equal(draws[:, 0], draws[:, 1])  # the same draws for all scores
    expected = (score.value * (1 - score.value) / 400) ** 0.5
    assert draws[:, 0].std().item() == pytest.approx(expected, rel=0.1)
    low, high = bootstrap.central(draws[:, 0])
    assert high - low == pytest.approx(2 * 1.96 * expected, rel=0.1)


def test_sparsity_measures_of_known_matrices() -> None:
    equal, single = torch.ones(4, 8), torch.eye(8)[:4]
    assert torch.allclose(normalised(equal).norm(dim=1), torch.ones(4))
    case = CASES["linear"]()
    graph = interbasis.build(case.network, case.inputs).graph
    measured = interaction_sparsity(graph)
    assert measured[0].participation == pytest.approx(1, abs=1e-6)  # LIB makes a linear network diagonal
    from interbasis.analysis.ablation.curves import _measure

    flat, sharp = (_measure("a", "b", normalised(matrix.double())) for matrix in (equal, single))
    assert (flat.participation, flat.gini, flat.hoyer, flat.kurtosis) == pytest.approx((8, 0, 0, 1))
    assert (sharp.participation, sharp.gini, sharp.kurtosis) == pytest.approx((1, 1 - 4 / 32, 8))
    assert sharp.share_above == (0.125,) * 4


@pytest.mark.parametrize("change", [shuffled, reinitialised])
@pytest.mark.parametrize("name", ["relu", "modadd"])
def test_scrambled_networks_keep_shape_and_scale(change: Callable[..., Network], name: str) -> None:
    case = CASES[name]()
    other = change(case.network, seed=1)
    assert torch.equal(change(case.network, seed=1)(case.inputs), other(case.inputs))
    assert not torch.allclose(other(case.inputs), case.network(case.inputs))
    for mine, theirs in zip(case.network.sections, other.sections, strict=True):
        matrices = [(mine.read, theirs.read), (mine.write, theirs.write)] if len(mine.read) else []
        for old, new in [*matrices, (mine.skip, theirs.skip)]:
            assert old.shape == new.shape
            assert torch.equal(old[:, :1], new[:, :1]) or not mine.source.constant or old is mine.write
            if change is shuffled:
                assert torch.allclose(old.flatten().sort().values, new.flatten().sort().values)
    assert (other.activations(case.inputs)[-2][..., 0] == 1).all()


def test_stress_finds_edges_that_cancel() -> None:
    """Two inputs that are the same, read with opposite signs: both edges can go, not one of them."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[9.0, -9, 1], [-9, 9, -1], [9, -9, 2], [9, -9, 0]]))
        module[0].bias.zero_()
        module[2].weight.copy_(torch.tensor([[1.0, -1, 0, 0], [-1, 1, 0, 0]]))
        module[2].bias.zero_()
    shared = torch.randn(50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = torch.cat([shared, shared, shared.flip(0)], dim=1)
    network = interbasis.from_torch(module)
    data = (inputs, network(inputs).argmax(-1))
    graph = interbasis.build(network, inputs, basis="neuron").graph
    evaluation = Evaluation(network, graph, data)
    mask = torch.ones_like(graph.edges[0], dtype=torch.bool)
    mask[:, 1:3] = False
    assert evaluation.edges({0: mask}).value == 1
    found = stress(evaluation, 0, mask, limit=0.99)
    assert found.all_ablated == 1
    assert found.unneeded == 10
    assert found.worst_half < 0.99
    assert found.failed > 0
    assert found.worst_half <= min(found.halves)


def test_controls_in_one_call(solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]]) -> None:
    network, _, data = solved
    rows = control_rows(
        network, data[0], data, bases=("lib", "pca"), stressed=("lib",), tolerance=0.05, edge_method="exact"
    )
    assert [row.name for row in rows] == [
        "lib", "lib, edges ranked at random", "pca", "lib, shuffled weights", "lib, reinitialised weights",
    ]  # fmt: skip
    assert [len(row.required) for row in rows] == [3, 0, 0, 3, 3]  # scrambled networks, too
    assert [len(row.stress) for row in rows] == [3, 0, 0, 0, 0]
    own = with_predicted_labels(shuffled(network), data)
    assert (
        Evaluation(shuffled(network), interbasis.build(shuffled(network), data[0]).graph, own).baseline.value
        == 1
    )
    for row in rows:
        assert row.curves.baseline == 1  # against own answers


def test_bad_fractions_are_refused(solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]]) -> None:
    network, graph, data = solved
    for fractions in ((), (0.0, 1.0), (0.5, 0.2), (0.5, 1.5)):
        with pytest.raises(interbasis.InterbasisError, match="fractions that rise"):
            sparsity_curves(network, graph, data, fractions=fractions)


def test_areas_that_are_not_defined_are_said_to_be_so(
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]],
) -> None:
    """On inputs that get the answer which the network gives without any edges, there is nothing to lose."""
    network, graph, data = solved
    nothing = ablate_edges(network, graph, data[0], [top_edges(e, 0) for e in graph.edges])
    chosen = data[1] == nothing.argmax(-1)
    assert chosen.any()
    result = open_run(graph, network, (data[0][chosen], data[1][chosen])).curves()
    curves = result.curves
    assert curves.whole.without_edges == curves.baseline == 1
    assert math.isnan(curves.whole.area)
    assert all(math.isnan(end) for end in curves.whole.distance_interval)
    stored = json.loads(result.model_dump_json())
    assert stored["curves"]["whole"]["area"] is None
    assert math.isnan(CurvesResult.model_validate(stored).curves.whole.area)
    assert curve_tables(result)


def test_no_more_edges_are_kept_than_there_are() -> None:
    case = mlp(nn.ReLU(), widths=(40, 5, 4), samples=60)  # five of forty directions are read
    graph = interbasis.build(case.network, case.inputs, progress=False).graph
    data = (case.inputs, case.network(case.inputs).argmax(-1))
    curves = sparsity_curves(case.network, graph, data, progress=False)
    existing = [graph.inner_edges(k).numel() for k in range(2)]
    assert [curve.counts[-1] for curve in curves.sections.values()] == existing
    assert curves.whole.counts[-1] == sum(existing)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("stage", ["ablate", "curves", "controls"])
def test_data_that_are_not_finite_are_refused(
    solved: tuple[Network, InteractionGraph, tuple[Tensor, Tensor]], stage: str, bad: float
) -> None:
    network, graph, (inputs, labels) = solved
    spoilt = inputs.clone()
    spoilt[7, 2] = bad
    opened = open_run(graph, network, inputs, test_data=(spoilt, labels), progress=False)
    with pytest.raises(InterbasisError, match=r"not finite.*sample 7\b"):
        getattr(opened, stage)()
