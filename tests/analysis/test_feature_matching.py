"""Features of two runs, matched: overlaps against the activations themselves, and what two models share."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import interbasis
from cases import normal
from interbasis import build, from_torch
from interbasis.analysis.compare import compare
from interbasis.analysis.feature_correlations import measured_correlations
from interbasis.analysis.feature_matching import correlations, layer_overlaps, match
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network
from interbasis.run.run import Run
from interbasis.show.result_tables import comparison_tables
from interbasis.show.viewer.payload import matches


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 4)).double()


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    return normal(300, 7, seed=1) @ normal(7, 7, seed=2)


@pytest.fixture(scope="module")
def three(inputs: Tensor) -> tuple[Network, list[InteractionGraph]]:
    network = from_torch(mlp())
    return network, [build(network, inputs, basis=basis).graph for basis in ("lib", "pca", "neuron")]


@pytest.mark.parametrize("other", [1, 2])
@pytest.mark.parametrize("k", [0, 1])
def test_overlaps_are_correlations_over_the_data(
    three: tuple[Network, list[InteractionGraph]], inputs: Tensor, k: int, other: int
) -> None:
    network, graphs = three
    activations = network.activations(inputs)[k].double()
    a, b = (graph.layers[k] for graph in (graphs[0], graphs[other]))
    features = [layer.to_features(activations.flatten(0, -2))[:, 1:] for layer in (a, b)]
    centred = [part - part.mean(0) for part in features]
    scaled = [part / part.norm(dim=0).clamp_min(1e-300) for part in centred]
    expected = scaled[0].T @ scaled[1]
    formula = correlations(a, b, b.eigenvalues if other == 1 else b.variances)[1:, 1:]
    torch.testing.assert_close(formula, expected, atol=1e-10, rtol=0)
    measured = measured_correlations((network, network), (graphs[0], graphs[other]), inputs)[k][1:, 1:]
    torch.testing.assert_close(measured, expected, atol=1e-10, rtol=0)


def rearranged(graph: InteractionGraph, order: torch.Tensor, name: str) -> InteractionGraph:
    """The graph with the features of its middle layer in another order, flipped, as if of another model."""
    layer = graph.layers[1]
    rows = torch.cat([torch.zeros(1, dtype=torch.long), 1 + order])
    signs = torch.where(torch.arange(len(rows)) % 2 == 1, -1.0, 1.0).double()
    moved = LayerBasis(
        layer.name, signs[:, None] * layer.transform[rows], layer.inverse[:, rows] * signs, layer.mean,
        layer.eigenvalues[rows], layer.variances,
    )  # fmt: skip
    edges = [graph.edges[0][rows], graph.edges[1][:, rows]]
    provenance = graph.provenance.model_copy(update={"model_fingerprint": name})
    return replace(
        graph, layers=[graph.layers[0], moved, graph.layers[2]], edges=edges, provenance=provenance
    )


def test_features_in_another_order_are_found_again(three: tuple[Network, list[InteractionGraph]]) -> None:
    _, (lib, _, _) = three
    order = torch.randperm(lib.layers[1].features - 1, generator=torch.Generator().manual_seed(3))
    found = match(lib, rearranged(lib, order, "other weights"))["linear.1"]
    assert torch.equal(1 + order[found.second - 1], found.first)
    torch.testing.assert_close(found.overlaps, torch.ones(len(order), dtype=torch.float64))
    assert found.chance < 0.8


def test_cosines_in_the_metric_of_either(
    three: tuple[Network, list[InteractionGraph]], inputs: Tensor
) -> None:
    """The formula against directions and metrics written out."""
    _, (lib, pca, _) = three
    stranger = replace(pca, provenance=pca.provenance.model_copy(update={"model_fingerprint": "other"}))
    a, b = lib.layers[1], pca.layers[1]
    overlaps = layer_overlaps(lib, stranger, a, b)(None)
    W = [basis.transform[1:].T @ basis.transform[1:] for basis in (a, b)]
    for i, j in ((1, 1), (2, 5), (4, 3)):
        v, w = a.inverse[:, i], b.inverse[:, j]
        both = [(v @ m @ w).abs() / ((v @ m @ v) * (w @ m @ w)).sqrt() for m in W]
        torch.testing.assert_close(overlaps[i, j], (both[0] * both[1]).sqrt(), rtol=1e-9, atol=1e-9)
    assert [found.layer for found in matches(lib, stranger)] == lib.layer_names


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, inputs: Tensor) -> tuple[Any, dict[str, Run]]:
    """Runs of a model, of one whose weights moved a little, and of one with hidden units in another order."""
    folder = tmp_path_factory.mktemp("runs")
    base = mlp()
    near = copy.deepcopy(base)
    for k, parameter in enumerate(near.parameters()):
        parameter.data *= 1 + 0.01 * normal(*parameter.shape, seed=k)
    twin = copy.deepcopy(base)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    twin[0].weight.data, twin[0].bias.data = base[0].weight.data[order], base[0].bias.data[order]
    twin[2].weight.data = base[2].weight.data[:, order]
    labels = base(inputs).argmax(1)
    runs = {}
    for name, module in {"base": base, "near": near, "twin": twin}.items():
        run = build(from_torch(module), (inputs, labels), progress=False)
        run.save(folder / name)
        run.ablate(metric="cross_entropy", tolerance=0.01)
        run.modules(null_graphs=0)
        runs[name] = run
    return folder, runs


def test_a_model_that_moved_a_little_shares_features_edges_and_modules(
    saved: tuple[Any, dict[str, Run]],
) -> None:
    folder, _ = saved
    compared = compare(folder / "base", folder / "near")
    assert (compared.same_model, compared.same_data, compared.matched_by) == (False, True, "directions")
    assert compared.not_compared is None
    for layer in compared.layers.values():
        assert layer.match.overlap > 0.95
        assert layer.match.chance is None or layer.match.chance < 0.9
    for section in compared.sections.values():
        assert section.edge_correlation > 0.9
        assert section.strongest_shared > 0.7
        assert None not in section.edges_required
    assert compared.runs[0].baseline != compared.runs[1].baseline
    assert compared.module_agreement is not None
    assert json.loads(compared.to_json())["layers"]["linear.1"]["match"]["pairs"]
    text = " ".join(map(str, comparison_tables(compared)))
    assert "whose weights differ" in text
    assert "Without ablation: cross-entropy" in text


def test_two_models_with_nothing_in_common_but_the_data(
    saved: tuple[Any, dict[str, Run]], inputs: Tensor
) -> None:
    """Hidden units in another order: the same features, which only activations can tell."""
    folder, runs = saved
    by_directions = compare(folder / "base", folder / "twin").layers["linear.1"].match
    compared = runs["base"].compare(runs["twin"], data=inputs)
    assert compared.matched_by == "measured correlation"
    by_data = compared.layers["linear.1"].match
    assert by_data.overlap == pytest.approx(1, abs=1e-6)
    assert by_data.mean == pytest.approx(1, abs=1e-4)
    assert by_directions.overlap < 0.9
    assert all(section.edge_correlation > 0.999 for section in compared.sections.values())
    assert compared.module_agreement == pytest.approx(1)


def test_other_shapes_are_refused(saved: tuple[Any, dict[str, Run]], inputs: Tensor, tmp_path: Path) -> None:
    folder, _ = saved
    torch.manual_seed(0)
    wider = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 4)).double()
    build(from_torch(wider), inputs, progress=False).save(tmp_path / "wider")
    with pytest.raises(InterbasisError, match=r"different widths at linear.1 \(10 and 9\)"):
        interbasis.compare(folder / "base", tmp_path / "wider")
