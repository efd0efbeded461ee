"""Real masks against passes with boolean ones, and attacks on networks where the worst mask is known."""

from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import interbasis
from cases import CASES
from command_line import Cli
from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.masked_pass import ablated
from interbasis.analysis.ablation.memory import AblationPlan
from interbasis.analysis.ablation.robust import Attack, RobustSearch, soft_ablated
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import load_result
from interbasis.lib.coordinates import sections_in_bases
from reference import relative_error


@pytest.mark.parametrize("name", ["gelu", "linear", "modadd", "positionwise"])
def test_a_real_mask_of_zeros_and_ones_is_an_ablation(name: str) -> None:
    case = CASES[name]()
    graph = interbasis.build(case.network, case.inputs).graph
    activations = case.network.activations(case.inputs)
    for k, section in enumerate(sections_in_bases(case.network, graph.layers)):
        f = graph.layers[k].to_features(activations[k])
        shape = graph.edges[k].shape
        masks = torch.rand(len(f), *shape, generator=torch.Generator().manual_seed(k)) < 0.5
        expected = ablated(section, f, masks[0])
        assert relative_error(soft_ablated(section, f, masks[0].double()), expected) <= 1e-12
        apart = torch.cat([ablated(section, row[None], mask) for row, mask in zip(f, masks, strict=True)])
        assert relative_error(soft_ablated(section, f, masks.double()), apart) <= 1e-12


def cancelling() -> tuple[interbasis.Network, torch.Tensor, torch.Tensor]:
    """Two classes told apart by x_0; x_1 enters through two hidden neurons whose effects cancel."""
    first, last = nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
        last.weight.copy_(torch.tensor([[1.0, 3.0, -3.0], [-1.0, -3.0, 3.0]]))
    module = nn.Sequential(first, nn.Identity(), last).double()
    inputs = torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (
        interbasis.from_torch(nn.Sequential(first, nn.Tanh(), last).double()),
        inputs,
        module(inputs).argmax(1),
    )


def test_edges_that_cancel_are_found() -> None:
    """Without all three edges of x_1 nothing is lost; with one of them back, the classes are confused."""
    network, inputs, _ = cancelling()
    labels = network(inputs).argmax(-1)
    graph = interbasis.build(network, inputs, basis="neuron").graph
    evaluation = Evaluation(network, graph, (inputs, labels), "accuracy")
    kept = torch.zeros(graph.edges[1].shape, dtype=torch.bool)
    kept[:, :2] = True  # the constant and the hidden neuron of x_0
    assert evaluation.edges({1: kept}).value == 1.0
    search = RobustSearch(evaluation, 1, limit=0.999, attack=Attack(steps=6))
    worst = search.worst_common(kept)
    one_back = kept.clone()
    one_back[:, 2] = True
    assert worst <= evaluation.edges({1: one_back}).value < 0.8
    assert search.worst_per_input(kept) <= worst
    assert RobustSearch(evaluation, 1, 0.999, Attack(level=0.001, steps=6)).worst_common(kept) > 0.98
    found = search.count(4)
    assert found.count > 4 or found.worst_at_plain >= 0.999


def test_what_nothing_depends_on_is_robust() -> None:
    network, inputs, _ = cancelling()
    labels = network(inputs).argmax(-1)
    graph = interbasis.build(network, inputs, basis="neuron").graph
    evaluation = Evaluation(network, graph, (inputs, labels), "accuracy")
    search = RobustSearch(evaluation, 0, limit=0.999, attack=Attack(steps=4))
    edges = graph.edges[0]
    needed = int((edges[1:, 1:] > 0).sum())
    found = search.count(needed)
    assert found.count == found.plain == needed
    assert found.worst_at_plain == 1.0


def test_convolutions_have_robust_counts_that_do_not_depend_on_how_many_samples_are_held() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 2, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    module, images = nn.Sequential(*layers).double(), torch.randn(12, 1, 4, 4, dtype=torch.float64)
    network = interbasis.from_torch(module, images[:1])
    graph = interbasis.build(network, images).graph
    data = images, module(images).argmax(1)
    for k in range(len(network.sections)):
        counts = []
        for plan in (None, AblationPlan(samples=5)):
            evaluation = Evaluation(network, graph, data, "cross_entropy", plan=plan)
            limit = evaluation.baseline.value + 0.05
            counts.append(RobustSearch(evaluation, k, limit, Attack(steps=3)).count(1).model_dump())
        assert counts[0] == pytest.approx(counts[1], rel=1e-9)
        assert counts[0]["count"] == 1 or counts[0]["worst_at_plain"] > limit


def test_the_command_stores_it_and_the_report_says_so(cli: Cli, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)).double()
    inputs = torch.randn(60, 4, dtype=torch.float64)
    run = interbasis.build(interbasis.from_torch(module), inputs).save(tmp_path / "run")
    numpy.savez(tmp_path / "data.npz", x=inputs.numpy(), y=module(inputs).argmax(1).numpy())
    interbasis.mlp.save(module, tmp_path / "m.safetensors")
    given = ("--model", f"mlp:{tmp_path}/m.safetensors", "--data", f"npz:{tmp_path}/data.npz")
    ended = cli("ablate", run, *given, "--tolerance", "0.05", "--robust")
    assert "robust edges" in ended.out
    assert "plain" in ended.out
    sections = load_result(run, AblationResult).sections
    for section in sections.values():
        assert section.robust.plain == section.count <= section.robust.count
        assert section.robust.worst_per_input <= 1
    assert cli("report", run, "--out", tmp_path / "report").code == 0
    html = next((tmp_path / "report").glob("*.html")).read_text()
    assert "no mask found" in html
    counted = [f"{s.name} {s.robust.count:,} (plain {s.count:,})" for s in sections.values()]
    assert all(text in html for text in counted)
    curves = cli("curves", run, *given, "--robust", "--json").json
    costs = []
    for name, worst in curves["worst"].items():
        values = curves["curves"]["sections"][name]["values"]
        costs += [v - w for v, w in zip(values, worst, strict=True)]
        assert costs[-1] == 0  # nothing is left out
    assert min(costs) >= 0 < max(costs)
