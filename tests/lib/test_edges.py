"""Edges: exact, by quadrature, and estimated."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from cases import CASES, as_general, attention_section, mlp, normal
from interbasis import InterbasisError, LayerBasis, Network, build
from interbasis.base.records import Basis, Method
from interbasis.compute.executor import Executor
from interbasis.data import Batches
from interbasis.lib.edges import Edges, EdgeSettings, EdgesPass, completeness, estimate_edges, measure
from interbasis.lib.edges import edges as measure_edges
from interbasis.models.sequential import RowPrefix
from interbasis.network.cores import AttentionShape, Elementwise
from interbasis.network.cores.attention import Rotary
from interbasis.numerics.integration import rule
from interbasis.numerics.random_signs import Sources
from reference import edges as reference_edges
from reference import relative_error


@pytest.mark.parametrize("kind", ["lib", "pca", "neuron"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", ["gradient", "quadrature", "trapezoid"])
def test_edges_are_what_the_definition_says(name: str, kind: Basis, method: Method) -> None:
    case = CASES[name]()
    graph = build(case.network, case.inputs, basis=kind, edge_method=method, edge_points=2).graph
    nodes, weights = {
        "gradient": ([1.0], [1.0]),
        "quadrature": ([0.5 - 0.75**0.5 / 3, 0.5 + 0.75**0.5 / 3], [0.5, 0.5]),
        "trapezoid": ([0.0, 0.5, 1.0], [0.25, 0.5, 0.25]),
    }[method]
    activations = case.network.activations(case.inputs)
    for k, section in enumerate(case.network.sections):
        source, target = graph.layers[k : k + 2]
        expected = reference_edges(section, activations[k], source, target, nodes=nodes, weights=weights)
        assert graph.edges[k].shape == (target.features, source.features)
        assert relative_error(graph.edges[k], expected) <= 1e-10


@pytest.mark.parametrize("name", [name for name in CASES if name != "general"])
def test_exact_attributions_add_up(name: str) -> None:
    """Completeness, Σ_j A_ij = F̂_i; attention and general cores have no closed form and take quadrature."""
    case = CASES[name]()
    layers = build(case.network, case.inputs, edge_method=None).graph.layers
    missing = completeness(case.network, layers, case.inputs, "exact", points=40)
    assert max(missing) <= 1e-10


def test_a_layer_norm_by_quadrature_adds_up_as_the_nodes_grow_dense() -> None:
    """Along the line from 0 it turns within √ε of its start, which no small number of nodes resolves."""
    case = CASES["general"]()
    layers = build(case.network, case.inputs, edge_method=None).graph.layers
    coarse = completeness(case.network, layers, case.inputs, points=40)
    fine = completeness(case.network, layers, case.inputs, points=160)
    assert fine[0] < coarse[0] / 100
    assert max(coarse[1:]) <= 1e-10


@pytest.mark.parametrize("name", ["gelu", "silu", "modadd"])
def test_a_gradient_does_not_add_up_and_quadrature_converges_to_exact(name: str) -> None:
    case = CASES[name]()
    layers = build(case.network, case.inputs, edge_method=None).graph.layers
    assert max(completeness(case.network, layers, case.inputs, "gradient")) > 1e-4
    exact = measure_edges(case.network, layers, case.inputs, "exact", points=40)
    errors = []
    for points in (1, 2, 4, 12):
        found = measure_edges(case.network, layers, case.inputs, "quadrature", points=points)
        errors.append(max(relative_error(f, e) for f, e in zip(found, exact, strict=True)))
    assert errors[-1] < 1e-8
    assert errors == sorted(errors, reverse=True)
    coarse, fine = (
        measure_edges(case.network, layers, case.inputs, "trapezoid", points=points) for points in (20, 200)
    )
    coarse, fine = (
        max(relative_error(f, e) for f, e in zip(found, exact, strict=True)) for found in (coarse, fine)
    )
    # second order; first order where a ReLU's slope at α = 0 is not that of the rest of the line
    assert fine < coarse / (8 if name == "modadd" else 50)


@pytest.mark.parametrize("name", ["relu", "leaky", "linear"])
def test_gradient_equals_exact_for_positively_homogeneous_sections(name: str) -> None:
    case = CASES[name]()
    layers = build(case.network, case.inputs, edge_method=None).graph.layers
    gradient = measure_edges(case.network, layers, case.inputs)
    for method in ("exact", "quadrature"):
        other = measure_edges(case.network, layers, case.inputs, method, points=3)
        assert max(relative_error(g, o) for g, o in zip(gradient, other, strict=True)) <= 1e-10


@pytest.mark.parametrize("name", ["gelu", "positionwise", "modadd-2-blocks"])
def test_small_blocks_of_samples_and_positions_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis.network import attributions

    case = CASES[name]()
    layers = build(case.network, case.inputs, edge_method=None).graph.layers
    whole = measure_edges(case.network, layers, case.inputs)
    monkeypatch.setattr(attributions, "MAX_BLOCK_ELEMENTS", 50)
    monkeypatch.setattr(attributions, "MIN_BLOCK_TOKENS", 2)
    for mine, theirs in zip(measure_edges(case.network, layers, case.inputs), whole, strict=True):
        assert relative_error(mine, theirs) <= 1e-12
    assert max(completeness(case.network, layers, case.inputs, points=40)) <= 1e-10


def test_somebody_elses_bases_need_no_more_than_two_matrices() -> None:
    case = mlp(nn.GELU())
    rotations = [torch.linalg.qr(normal(node.width, node.width))[0] for node in case.network.nodes]
    layers = [LayerBasis(f"mine {k}", rotation, rotation.T) for k, rotation in enumerate(rotations)]
    found = measure_edges(case.network, layers, case.inputs)
    activations = case.network.activations(case.inputs)
    for k, section in enumerate(case.network.sections):
        assert relative_error(found[k], reference_edges(section, activations[k], *layers[k : k + 2])) <= 1e-10


def test_bases_that_do_not_fit_are_refused() -> None:
    case = mlp(nn.GELU())
    layers = build(case.network, case.inputs, edge_method=None).graph.layers
    with pytest.raises(InterbasisError, match=r"4 node layers linear\.0.*received 3"):
        measure_edges(case.network, layers[:3], case.inputs)
    with pytest.raises(InterbasisError, match=r"10 coordinates, node layer 'linear\.0' has 7"):
        measure_edges(case.network, [layers[1], *layers[1:]], case.inputs)
    with pytest.raises(InterbasisError, match="edge method is one of"):
        measure_edges(case.network, layers, case.inputs, "midpoint")  # type: ignore[arg-type]
    with pytest.raises(InterbasisError, match="inverse of shape"):
        LayerBasis("odd", torch.zeros(3, 4), torch.zeros(3, 4))


class Identity(RowPrefix):
    """A prefix that takes activations as they are."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def attention_network(general: bool) -> tuple[Network, list[LayerBasis], torch.Tensor]:
    section = attention_section(AttentionShape(2, 3))
    f = normal(12, 4, 6, seed=21)
    f[..., 0] = 1
    network = Network(Identity([], 5, torch.float64), (as_general(section) if general else section,))
    identities = [
        LayerBasis(node.name, torch.eye(node.width).double(), torch.eye(node.width).double())
        for node in network.nodes
    ]
    return network, identities, f


def estimate(
    network: Network, layers: list[LayerBasis], data: Tensor | list[Any], sources: Sources | None
) -> Edges:
    return measure(network, layers, Batches(data), EdgeSettings(rule(), sources))[0].edges


SETTINGS: dict[str, tuple[bool, Any, int]] = {
    "mlp, groups of 8": (False, 8, 2),
    "mlp, groups of 8, one source": (False, 8, 1),
    "attention, groups of 3": (True, 3, 2),
    "attention, positions": (True, "positions", 2),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_estimated_edges_are_unbiased_and_their_error_is_right(setting: str) -> None:
    """Mean of Ê² over 200 seeds within 3 standard errors; reported error right within a factor 2."""
    attention, group, count = SETTINGS[setting]
    if attention:
        network, layers, data = attention_network(general=False)
    else:
        case = mlp(nn.GELU(), widths=(4, 6, 5), samples=200)
        network = case.network.between(["linear.0", "linear.1"])
        layers, data = build(network, case.inputs, edge_method=None).graph.layers, case.inputs
    exact = estimate(network, layers, data, None).rms
    found = [estimate(network, layers, data, Sources(group, count, seed)) for seed in range(200)]
    squares = torch.stack([e.rms.square() for e in found])
    matters = exact > 1e-6 * exact.max()
    deviation = (squares.mean(0) - exact.square())[matters]
    standard_error = squares.std(0)[matters] / 200**0.5
    z = deviation.abs() / standard_error.clamp_min(1e-12 * exact.max() ** 2)
    assert z.max() < 3
    actual = torch.stack([e.rms for e in found]).std(0)[matters]
    reported = torch.stack([e.error.square() for e in found]).mean(0).sqrt()[matters]
    real = actual > 1e-9 * exact.max()
    assert real.any()
    ratio = reported[real] / actual[real]
    assert ratio.min() > 0.5
    assert ratio.max() < 2


@pytest.mark.parametrize(
    ("kind", "group"),
    [("attention", 4), ("attention", "positions"), ("rotary", "positions"), ("elementwise", 4)],
)
def test_edges_at_sampled_positions_are_unbiased_and_their_error_is_no_promise_too_much(
    kind: str, group: int | Literal["positions"]
) -> None:
    """Mean of Ê² over 200 seeds within 3.5 standard errors; the reported error is a bound, not far off."""
    network, layers, data = sampled_network(kind)
    exact = estimate(network, layers, data, None).rms
    found = [estimate(network, layers, data, Sources(group, 2, seed, positions=4)) for seed in range(200)]
    squares = torch.stack([e.rms.square() for e in found])
    matters = exact > 1e-6 * exact.max()
    z = (squares.mean(0) - exact.square())[matters].abs() / (squares.std(0)[matters] / 200**0.5)
    assert z.max() < 3.5
    actual = torch.stack([e.rms for e in found]).std(0)[matters]
    ratio = torch.stack([e.error.square() for e in found]).mean(0).sqrt()[matters] / actual
    assert ratio.min() > 0.8
    assert ratio.max() < 4


def sampled_network(kind: str) -> tuple[Network, list[LayerBasis], torch.Tensor]:
    """One section on 6 sequences of 9 positions."""
    rotary = Rotary((1.0, 0.3)) if kind == "rotary" else None
    section = attention_section(AttentionShape(2, 4, rotary=rotary))
    if kind == "elementwise":
        section = replace(section, read=section.read[:8], core=Elementwise(nn.GELU()))
    data = normal(6, 9, 6, seed=31)
    data[..., 0] = 1
    network = Network(Identity([], 5, torch.float64), (section,))
    return network, attention_network(general=False)[1], data


@pytest.mark.parametrize("sources", [Sources(6, 2, 1), Sources("positions", 2, 1, positions=7)])
def test_short_runs_of_queries_change_nothing(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    from interbasis.network.cores.attention import core

    network, layers, data = sampled_network("attention")
    whole = estimate(network, layers, data, sources)
    monkeypatch.setattr(core, "MAX_QUERIES_PER_SUM", 2)
    assert relative_error(estimate(network, layers, data, sources).rms, whole.rms) <= 1e-12


@pytest.mark.parametrize("kind", ["attention", "elementwise"])
def test_as_many_positions_as_there_are_is_all_of_them(kind: str) -> None:
    network, layers, data = sampled_network(kind)
    assert torch.equal(
        estimate(network, layers, data, Sources(3, 2, 1, positions=9)).rms,
        estimate(network, layers, data, Sources(3, 2, 1)).rms,
    )


def test_the_error_falls_with_the_root_of_the_number_of_groups() -> None:
    case = mlp(nn.GELU(), widths=(4, 6, 5), samples=512)
    network = case.network.between(["linear.0", "linear.1"])
    layers = build(network, case.inputs, edge_method=None).graph.layers
    exact = estimate(network, layers, case.inputs, None).rms

    def error(group: int) -> float:
        found = [estimate(network, layers, case.inputs, Sources(group, 1, seed)).rms for seed in range(30)]
        return ((torch.stack(found) - exact) / exact.max()).square().mean().sqrt().item()

    # 4× the groups, half the error
    assert 1.6 < error(64) / error(16) < 2.5
    assert 1.6 < error(16) / error(4) < 2.6


@pytest.mark.parametrize("general", [False, True])
def test_groups_of_one_and_single_positions_are_exact(general: bool) -> None:
    network, layers, data = attention_network(general)
    exact = estimate(network, layers, data, None)
    single = estimate(network, layers, data, Sources(1, 1, 0))
    assert exact.error is None
    assert relative_error(single.rms, exact.rms) <= 1e-12
    assert single.error.max() == 0
    last = attention_section(AttentionShape(2, 3), last_only=True)
    network = Network(network.prefix, (as_general(last) if general else last,))
    exact = estimate(network, layers, data, None)
    positions = estimate(network, layers, data, Sources("positions", 2, 0))
    assert relative_error(positions.rms, exact.rms) <= 1e-12
    assert positions.error.max() <= 1e-7 * exact.rms.max()


@pytest.mark.parametrize("group", [5, "positions"])
def test_estimates_depend_on_the_seed_but_not_on_batches_or_on_the_path(
    group: int | Literal["positions"], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from interbasis.network import attributions

    network, layers, data = attention_network(general=False)
    sources = Sources(group, 2, 7)
    whole = estimate(network, layers, data, sources)
    monkeypatch.setattr(attributions, "MAX_BLOCK_ELEMENTS", 50)
    request.getfixturevalue("small_chunks")
    parts = estimate(network, layers, list(data.split(5)), sources)
    general = estimate(attention_network(general=True)[0], layers, data, sources)
    for other in (parts, general):
        assert relative_error(other.rms, whole.rms) <= 1e-10
        assert relative_error(other.error, whole.error) <= 1e-8
    assert relative_error(estimate(network, layers, data, Sources(group, 2, 8)).rms, whole.rms) > 1e-3


@pytest.mark.parametrize("sources", [None, Sources(5, 2, 7), Sources("positions", 1, 7)])
def test_sums_over_parts_of_the_data_merge_into_those_of_the_whole(sources: Sources | None) -> None:
    """As processes would share the work: each takes its samples by their index in the whole."""
    network, layers, data = attention_network(general=False)
    whole = estimate(network, layers, data, sources)
    edges = EdgesPass(network, layers, Batches(data), EdgeSettings(rule(), sources))
    parts = Batches(data[:5]), Batches(data[5:], offset=5)
    first, second = (Executor(network).run(edges, part) for part in parts)
    edges.merge(first, second)
    merged = edges.sections[0].total(first).edges
    assert relative_error(merged.rms, whole.rms) <= 1e-12
    if sources:
        assert relative_error(merged.error, whole.error) <= 1e-10


def test_estimates_for_any_bases_come_with_their_error() -> None:
    network, layers, data = attention_network(general=False)
    (found,) = estimate_edges(network, layers, data, Sources(6, 3, 1))
    expected = estimate(network, layers, data, Sources(6, 3, 1))
    assert torch.equal(found.rms, expected.rms)
    assert torch.equal(found.error, expected.error)


def test_estimates_refuse_shuffled_data_and_empty_groups() -> None:
    case = mlp(nn.GELU())
    rows: Any = case.inputs
    loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
    with pytest.raises(InterbasisError, match="turn shuffling off"):
        build(case.network, loader, edge_group=4)
    with pytest.raises(InterbasisError, match="at least 1"):
        Sources(0)
    with pytest.raises(InterbasisError, match="edge_group cannot be 0"):
        build(case.network, case.inputs, edge_group=0)
    with pytest.raises(InterbasisError, match="turn shuffling off"):
        build(case.network, loader, basis="gib", jacobian_sources=1)
    graph = build(case.network, loader).graph
    assert graph.edges
    assert graph.provenance.data_fingerprints["data"] == "shuffled again with every pass"


@pytest.mark.parametrize("group", [1, 7, "positions"])
def test_a_build_takes_any_group(group: int | Literal["positions"]) -> None:
    case = CASES["modadd-2-blocks"]()
    exact, found = (build(case.network, case.inputs, edge_group=g).graph for g in (None, group))
    errors = [relative_error(f, e) for f, e in zip(found.edges, exact.edges, strict=True)]
    assert len(found.edge_errors) == len(errors) == 5
    # the first section has three output positions, the later ones only the last
    if group == 1:
        assert max(errors) <= 1e-12
    elif group == "positions":
        assert errors[0] > 1e-3
        assert max(errors[2:]) <= 1e-12
    else:
        assert min(errors[:4]) > 1e-3


def test_a_built_graph_carries_the_errors_of_its_estimate() -> None:
    case = mlp(nn.GELU())
    graph = build(case.network, case.inputs, edge_group=4).graph
    assert [e.shape for e in graph.edge_errors] == [e.shape for e in graph.edges]
    assert (graph.edge_errors[0] > 0).any()
    assert (graph.edge_errors[-1] == 0).all()  # linear: exact whatever the sources
    assert build(case.network, case.inputs).graph.edge_errors == []
