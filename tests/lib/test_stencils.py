"""Closed forms of sections that read a stencil, against per-sample Jacobians in float64."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import interbasis
from cases import normal
from interbasis.base.records import Method
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.graph.layer_basis import LayerBasis
from interbasis.lib.edges import EdgeSettings, SectionEdges, completeness, estimate_edges
from interbasis.lib.edges import edges as measure_edges
from interbasis.lib.jacobians import Jacobians
from interbasis.lib.statistics import collect
from interbasis.network.cores import Elementwise, Gated, General
from interbasis.network.network import NodeLayer
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import (
    StencilSection,
    add_taps,
    averaging_section,
    flattened_taps,
    linear_section,
    maximum_section,
    patch_matrix,
)
from interbasis.network.window import SlidingWindow
from interbasis.numerics.integration import rule
from interbasis.numerics.random_signs import Sources
from reference import attributions, edges, jacobian_gram, jacobians, relative_error
from stencil_cases import (
    EXAMPLE,
    Geometry,
    as_activations,
    convolution_section,
    geometries,
    network_of,
    small_residual,
)

CORES = [nn.ReLU(), nn.ReLU6(), nn.GELU(), nn.SiLU(), nn.Tanh(), nn.LeakyReLU(0.2), nn.Sigmoid()]


def check_gram(section: StencilSection, images: Tensor) -> None:
    """M′ from statistics collected in one pass, against the definition."""
    network, batches = network_of(section), Batches(images)
    transform = normal(4, section.target.width, seed=9)
    jacobians = Jacobians(Executor(network), collect(network, batches), batches)
    gram = jacobians.to_next(0, transform)
    expected = jacobian_gram(section, as_activations(images), transform)[1:, 1:]
    assert relative_error(gram.matrix, expected) < 1e-10
    own = torch.linalg.eigvalsh(expected).flip(0)[: len(gram.K)]
    found = gram.eigenbasis(torch.eye(len(expected), dtype=torch.float64))[0][: len(own)]
    assert (found - own).abs().max() < 1e-10 * own[0]
    directions = normal(3, len(expected), seed=11)
    assert (gram.magnitudes_along(directions) >= gram.along(directions) * (1 - 1e-9) / (2 * 9 * 9)).all()


def check_edges(section: StencilSection, images: Tensor) -> None:
    """Gradient edges and a quadrature against the definition; completeness where the integral is exact."""
    layers = identities(section)
    f = as_activations(images)
    methods: tuple[tuple[Method, int], ...] = (("gradient", 1), ("quadrature", 3))
    for method, points in methods:
        integral = rule(method, points)
        [found] = measure_edges(network_of(section), layers, images, method, points=points)
        assert (
            relative_error(found, edges(section, f, *layers, nodes=integral.nodes, weights=integral.weights))
            < 1e-10
        )


def identities(section: StencilSection) -> list[LayerBasis]:
    """Random invertible bases that keep the constant."""
    layers = []
    for node, seed in ((section.source, 12), (section.target, 13)):
        matrix = torch.eye(node.width, dtype=torch.float64)
        matrix[1:] += 0.3 * normal(node.width - 1, node.width, seed=seed)
        layers.append(interbasis.LayerBasis(node.name, matrix, torch.linalg.inv(matrix)))
    return layers


@settings(max_examples=40, deadline=None)
@given(geometry=geometries())
def test_jacobian_grams_of_convolutions(geometry: Geometry) -> None:
    check_gram(convolution_section(geometry), geometry.images)


@settings(max_examples=3, deadline=None)
@given(geometry=geometries(dims=(3,)))
def test_in_three_dimensions(geometry: Geometry) -> None:
    check_gram(convolution_section(geometry), geometry.images[:2])
    check_edges(convolution_section(geometry), geometry.images[:1])


@settings(max_examples=15, deadline=None)
@given(geometry=geometries())
def test_edges_of_convolutions(geometry: Geometry) -> None:
    check_edges(convolution_section(geometry), geometry.images[:2])


@pytest.mark.parametrize("activation", CORES, ids=lambda module: type(module).__name__)
def test_activations(activation: nn.Module) -> None:
    section = convolution_section(EXAMPLE, Elementwise(activation))
    check_gram(section, EXAMPLE.images)
    check_edges(section, EXAMPLE.images[:1])
    [missing] = completeness(network_of(section), identities(section), EXAMPLE.images)
    assert missing < 1e-12


def test_gated_and_general_cores() -> None:
    gated = convolution_section(EXAMPLE, Gated(nn.SiLU()), read_rows=8)
    check_gram(gated, EXAMPLE.images)
    check_edges(gated, EXAMPLE.images[:1])
    general = convolution_section(EXAMPLE, General(nn.Softsign(), mixes_positions=False))
    check_gram(general, EXAMPLE.images)
    check_edges(general, EXAMPLE.images[:1])


POOLS = {
    "average": Stencil.average((5, 6), SlidingWindow.from_arguments((2, 3), 2, padding=(1, 1))),
    "average without padding": Stencil.average(
        (5, 6), SlidingWindow.from_arguments((3, 3), 2, padding=1), count_padding=False
    ),
    "uneven parts": Stencil.adaptive((5, 6), (3, 4)),
    "global": Stencil.adaptive((5, 6), (1, 1)),
}
MAXIMA = {
    "2×2": Stencil.sliding((5, 6), SlidingWindow.from_arguments((2, 2), 2, mode="inside")),
    "3×3 padded": Stencil.sliding((5, 6), SlidingWindow.from_arguments((3, 3), 2, padding=1, mode="inside")),
    "dilated": Stencil.sliding((5, 6), SlidingWindow.from_arguments((2, 2), 1, 2, 1, "inside")),
    "global": Stencil.adaptive((5, 6), (1, 1), maximum=True),
}


@pytest.mark.parametrize("stencil", POOLS.values(), ids=POOLS)
def test_average_pooling(stencil: Stencil) -> None:
    images = normal(3, 4, 5, 6, seed=1)
    section = averaging_section(*nodes(stencil, 5, 5), stencil, images)
    check_gram(section, images)
    check_edges(section, images)


@pytest.mark.parametrize("stencil", MAXIMA.values(), ids=MAXIMA)
def test_max_pooling(stencil: Stencil) -> None:
    """Also where several pixels are largest, as after a ReLU: the first one counts."""
    images = normal(3, 4, 5, 6, seed=1)
    for some in (images, images.relu()):
        section = maximum_section(*nodes(stencil, 5, 5), stencil, images)
        check_gram(section, some)
        if some is images:
            check_edges(section, some)
            assert max(completeness(network_of(section), identities(section), some)) < 1e-12


def test_flatten_into_a_linear_layer() -> None:
    images, stencil = normal(3, 4, 3, 2, seed=1), Stencil.flattened((3, 2))
    linear = nn.Linear(24, 3).double()
    skip = patch_matrix(stencil, 4, 5, images)
    skip[0, 0], skip[1:, 0] = 1, linear.bias.detach()
    add_taps(skip, stencil, flattened_taps(linear.weight.detach(), 4), 1, 1)
    section = linear_section(*nodes(stencil, 5, 4), skip, stencil)
    network = network_of(section)
    assert torch.allclose(network(images), linear(images.flatten(1)), atol=1e-14)
    check_gram(section, images)
    check_edges(section, images)


def nodes(stencil: Stencil, before: int, after: int) -> tuple[NodeLayer, NodeLayer]:
    return NodeLayer("a", before, grid=stencil.source), NodeLayer("b", after, grid=stencil.target)


def test_a_shortcut_through_an_average_overlaps_with_the_kernel() -> None:
    section = convolution_section(EXAMPLE)
    average = Stencil.average(
        (5, 6), SlidingWindow.from_arguments((2, 2), 2, padding=((0, 1), (0, 0))), count_padding=False
    )
    stencil, where = Stencil.sliding((5, 6), EXAMPLE.window).with_taps(average)
    assert stencil.target == average.target
    width = section.by_tap(section.read).shape[2]
    read, skip = (patch_matrix(stencil, rows, width, section.read) for rows in (4, 6))
    read[:, 1:] = normal(4, read.shape[1] - 1, seed=3)
    skip[1:, 1:] = normal(5, skip.shape[1] - 1, seed=4)
    assert len(where) == 1
    check_gram(replace(section, read=read, skip=skip, stencil=stencil), EXAMPLE.images)


def test_bases_of_a_residual_network_hold_what_any_basis_must() -> None:
    network, _, images = small_residual()
    graph = interbasis.build(network, images, edge_method="exact", dtype="float64").graph
    activations = network.activations(images)
    for k, (layer, f) in enumerate(zip(graph.layers, activations, strict=True)):
        features = layer.to_features(f).flatten(0, 1)
        assert (features[:, 0] - 1).abs().max() < 1e-12
        assert features[:, 1:].mean(0).abs().max() < 1e-10 * features[:, 1:].abs().max()
        if k == len(network.sections):
            break
        covariance = features[:, 1:].T @ features[:, 1:] / len(features)
        assert relative_error(covariance, torch.diag(layer.eigenvalues[1:])) < 1e-8
        following = graph.layers[k + 1]
        M = jacobian_gram(network.sections[k], f[:4], following.transform)
        assert M.shape == (layer.width, layer.width)
    whole = jacobian_gram(network.sections[4], activations[4], graph.layers[5].transform)
    inverse = graph.layers[4].inverse
    found = (inverse.T @ whole @ inverse)[1:, 1:]
    assert relative_error(found, torch.eye(len(found), dtype=torch.float64)) < 1e-8
    assert max(completeness(network, graph.layers, images)) < 1e-10


def test_errors_of_the_next_layer_are_carried_on() -> None:
    """Where the next features are off by CᵀEC, so is M′, by the same sum with E in the middle."""
    section, images = convolution_section(EXAMPLE), EXAMPLE.images
    network, batches = network_of(section), Batches(images)
    transform, off = normal(4, 6, seed=9), normal(4, 4, seed=10)
    off = off + off.T
    gram = Jacobians(Executor(network), collect(network, batches), batches).to_next(0, transform, off[None])
    J = torch.einsum("ro,nsotj->nsrtj", transform, jacobians(section, as_activations(images)))
    expected = torch.einsum("nsrtj,rq,nsqtk->jk", J, off, J) / images[:, 0].numel()
    assert relative_error(replace(gram, K=gram.noise[0]).matrix, expected[1:, 1:]) < 1e-10


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    network, _, images = small_residual(samples=12)
    whole = interbasis.build(network, images, dtype="float64").graph
    monkeypatch.setattr("interbasis.compute.executor.CHUNK_BYTES", 2**14)
    monkeypatch.setattr("interbasis.compute.executor.FINE_CHUNK_BYTES", 2**14)
    monkeypatch.setattr("interbasis.network.stencil_section.MAX_BLOCK_ELEMENTS", 2**11)
    parts = interbasis.build(network, list(images.split(5)), dtype="float64").graph
    for one, other in zip(whole.edges, parts.edges, strict=True):
        assert relative_error(other, one) < 1e-8


def test_the_global_basis_runs_through_stencils() -> None:
    """To the last layer, against the definition through the whole chain."""
    network, _, images = small_residual(samples=6)
    graph = interbasis.build(network, images, basis="gib", dtype="float64", edge_method="none").graph
    f = network.activations_at(3, images)

    def rest(z: Tensor) -> Tensor:
        for section in network.sections[3:]:
            z = section(z)
        return z

    M = jacobian_gram(rest, f, graph.layers[-1].transform)
    inverse = graph.layers[3].inverse
    found = (inverse.T @ M @ inverse)[1:, 1:]
    assert relative_error(found, torch.eye(len(found), dtype=torch.float64)) < 1e-7


@pytest.mark.parametrize(
    "sources", [Sources(8, 400), Sources("positions", 400), Sources(4, 400, positions=3)]
)
def test_signed_groups_estimate_the_exact_edges(sources: Sources) -> None:
    section = convolution_section(EXAMPLE)
    layers, f = identities(section), as_activations(EXAMPLE.images)
    exact = edges(section, f, *layers)
    [estimate] = estimate_edges(network_of(section), layers, EXAMPLE.images, sources)
    assert estimate.error is not None
    assert (estimate.error > 0).any()
    if sources.positions is None:
        assert ((estimate.rms - exact).abs() <= 6 * estimate.error + 1e-9 * exact).all()
    else:  # three of nine positions of three samples: of the right size
        assert 0.3 < (estimate.rms.square().sum() / exact.square().sum()).item() < 3


def test_groups_of_one_are_exact() -> None:
    section = convolution_section(EXAMPLE)
    in_bases = section.in_basis(identities(section)[0].inverse, identities(section)[1].transform)
    edges = SectionEdges(
        in_bases, EdgeSettings(rule("gradient"), Sources(1)), identities(section)[0].transform
    )
    sums: dict[Any, Any] = {}
    edges.add(sums, as_activations(EXAMPLE.images))
    A = attributions(section, as_activations(EXAMPLE.images), *identities(section))
    assert relative_error(edges.total(sums).square, A.square().sum((0, 1))) < 1e-10
