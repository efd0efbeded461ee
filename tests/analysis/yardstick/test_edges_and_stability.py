"""The rows edges and stability, on networks where the answers are known."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import normal
from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.masked_pass import ablate_edges
from interbasis.analysis.yardstick.edge_counts import own_labels
from interbasis.analysis.yardstick.stability import agreement_of_moments
from interbasis.data.batches import Batches
from interbasis.run.run import open_run

yardstick = partial(interbasis.yardstick, progress=False, ranks=(1,), removed=())


@pytest.fixture(scope="module")
def classifier() -> tuple[interbasis.Network, Tensor, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 3)).double()
    inputs = normal(120, 5, seed=1) * torch.linspace(2, 0.5, 5, dtype=torch.float64)
    return interbasis.from_torch(module), inputs, module(3 * inputs).argmax(-1)


def test_edges_are_those_of_an_ablation(
    classifier: tuple[interbasis.Network, Tensor, Tensor], tmp_path: Path
) -> None:
    network, inputs, labels = classifier
    result = yardstick(
        network, (inputs, labels), methods=("lib", "slicing"), rows=("edges", "learnt"), edge_tests=60,
        folder=tmp_path,
    )  # fmt: skip
    folder = interbasis.build(network, inputs).save(tmp_path / "run")
    run = open_run(folder, network, (inputs[:60], labels[:60]))
    wanted = run.ablate(robust=True, intervals=True, stable=False).sections
    given = [row for row in result.edges if row.labels == "data"]
    assert [(row.source, row.required, row.interval, row.robust) for row in given] == [
        (name, row.count, row.interval, row.robust.count) for name, row in wanted.items()
    ]
    areas = run.curves().curves.sections
    assert [row.area.value for row in given] == pytest.approx([areas[row.source].area for row in given])
    own = [row for row in result.edges if row.labels == "own"]
    assert {row.network for row in own} == {"trained", "shuffled", "redrawn"}
    assert {row.method for row in result.edges} == {"lib"}  # slicing has no features of every layer
    assert all(row.metric == "cross_entropy" and row.robust >= row.required for row in own)
    assert result.curves == ()
    assert yardstick(
        network, (inputs, labels), methods=("lib", "slicing"), rows=("edges", "learnt"), edge_tests=60,
        folder=tmp_path,
    ) == result  # fmt: skip


def test_labels_drawn_from_the_outputs_measure_the_divergence() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        module[2].weight.mul_(8)
    network, inputs = interbasis.from_torch(module), normal(4000, 5, seed=1)
    data = own_labels(network, Batches((inputs, module(inputs).argmax(-1))), seed=0)
    graph = interbasis.build(network, inputs[:200]).graph
    evaluation = Evaluation(network, graph, data, "cross_entropy")
    mask = torch.zeros(graph.edges[0].shape, dtype=torch.bool)
    mask[:, 0] = True
    rise = evaluation.edges({0: mask}).losses - evaluation.baseline.losses
    masked = ablate_edges(network, graph, inputs, {0: mask})
    p, q = (outputs.flatten(0, -2).log_softmax(-1) for outputs in (network(inputs), masked))
    divergence = (p.exp() * (p - q)).sum(-1).mean().item()
    error = (rise.std() / len(rise) ** 0.5).item()
    assert divergence > 10 * error
    assert abs(rise.mean().item() - divergence) < 4 * error


def test_agreement_of_known_moments() -> None:
    a, noise = normal(4000, 3, seed=1), normal(4000, 3, seed=2)
    turn = torch.linalg.qr(normal(3, 3, seed=3)).Q
    for b, subspace, matched in ((a[:, [2, 0, 1]] * -7, 1, 1), (a @ turn, 1, None), (noise, 0, 0)):
        joint = torch.cat([torch.ones(4000, 1).double(), a + 5, b], dim=1)
        found = [value.item() for value in agreement_of_moments((joint.T @ joint)[None])]
        assert found[0] == pytest.approx(subspace, abs=0.01)
        assert found[1] == pytest.approx(matched, abs=0.05) if matched is not None else found[1] < 0.99


def test_stability_over_halves_and_seeds(classifier: tuple[interbasis.Network, Tensor, Tensor]) -> None:
    """A copy with permuted hidden neurons has the same features; another network has not."""
    network, inputs, labels = classifier
    torch.manual_seed(0)
    first, _, last = modules = nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 3)
    with torch.no_grad():
        order = torch.tensor([3, 1, 5, 0, 2, 4])
        first.weight.copy_(first.weight[order])
        first.bias.copy_(first.bias[order])
        last.weight.copy_(last.weight[:, order])
    twin = interbasis.from_torch(nn.Sequential(*modules).double())
    torch.manual_seed(9)
    stranger = nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 3)).double()
    result = yardstick(
        network, (inputs, labels), methods=("lib", "neuron"), rows=("stability",),
        twins={"permuted": twin, "stranger": interbasis.from_torch(stranger)},
    )  # fmt: skip
    rows = {(row.method, row.place, row.compared): row for row in result.stability}
    place = result.stability[0].place
    assert len(rows) == 2 * 2 * 3
    for layer in {row.place for row in result.stability}:
        assert rows["lib", layer, "permuted"].matched.value == pytest.approx(1, abs=1e-6)
    assert rows["lib", place, "stranger"].matched.value < 0.95
    halves = rows["lib", place, "halves"].matched
    assert 0.3 < halves.low <= halves.value <= halves.high <= 1
    assert all(cost.forward_passes > 0 for cost in result.costs)
