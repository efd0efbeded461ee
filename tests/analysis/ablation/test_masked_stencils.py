"""Ablated passes through stencils, against a double loop over samples and output features."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import interbasis
from cases import normal, seeded
from interbasis.analysis.ablation.masked_pass import ablate_edges, ablated
from interbasis.analysis.ablation.robust import soft_ablated
from interbasis.analysis.ablation.search import edges_required
from interbasis.base.records import Basis
from interbasis.lib.coordinates import sections_in_bases
from interbasis.network.cores import Elementwise, Gated
from interbasis.network.network import NodeLayer, Section
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import StencilSection, maximum_section
from interbasis.network.window import SlidingWindow
from stencil_cases import Geometry, as_activations, convolution_section, geometries, small_residual


def check(section: StencilSection | Section, f: Tensor, density: float = 0.5) -> None:
    """Every output feature by a full pass of the section that sees its own input features only."""
    mask = torch.rand(len(section.skip), f.shape[2], generator=seeded(7)) < density
    mask[:, 0] = torch.rand(len(mask), generator=seeded(8)) < 0.8  # the constant's, too, is taken as it is
    rows = [
        torch.stack([section((one * kept)[None])[0, :, i] for i, kept in enumerate(mask)], dim=-1)
        for one in f
    ]
    found = ablated(section, f, mask)
    for result in (found, soft_ablated(section, f, mask.to(f))):
        assert (result - torch.stack(rows)).abs().max() < 1e-10 * found.abs().max().clamp_min(1e-6)


@settings(max_examples=25, deadline=None)
@given(geometry=geometries())
def test_convolutions(geometry: Geometry) -> None:
    check(convolution_section(geometry, Elementwise(nn.ReLU())), as_activations(geometry.images))


@pytest.mark.parametrize("basis", ["lib", "neuron"])
def test_a_residual_network_in_its_bases(basis: Basis) -> None:
    network, _, images = small_residual()
    graph = interbasis.build(network, images, basis=basis, edge_method=None, dtype="float64").graph
    for k, section in enumerate(sections_in_bases(network, graph.layers)):
        f = graph.layers[k].to_features(network.activations_at(k, images[:3]))
        for density in (0.0, 0.2, 0.9, 1.0):
            check(section, f, density)


def test_max_pooling_and_gates() -> None:
    stencil = Stencil.sliding((5, 6), SlidingWindow.from_arguments((3, 3), 2, padding=1, mode="inside"))
    nodes = NodeLayer("a", 5, grid=stencil.source), NodeLayer("b", 5, grid=stencil.target)
    images = normal(3, 4, 5, 6, seed=1)
    section = maximum_section(*nodes, stencil, images)
    mixed = section.in_basis(
        torch.eye(5).double() + 0.2 * normal(5, 5, seed=2).tril(-1), normal(5, 5, seed=3)
    )
    check(mixed, as_activations(images))


@settings(max_examples=5, deadline=None)
@given(geometry=geometries())
def test_gated_convolutions(geometry: Geometry) -> None:
    check(convolution_section(geometry, Gated(nn.SiLU()), read_rows=8), as_activations(geometry.images))


def test_all_edges_leave_the_network_alone_and_none_leave_the_mean() -> None:
    network, module, images = small_residual()
    graph = interbasis.build(network, images, dtype="float64").graph
    shapes = [edges.shape for edges in graph.edges]
    every = [torch.ones(shape, dtype=torch.bool) for shape in shapes]
    found = ablate_edges(network, graph, images, every)
    assert (found - module(images)).abs().max() < 1e-9
    none = torch.zeros(shapes[-1], dtype=torch.bool)
    none[:, 0] = True
    found = ablate_edges(network, graph, images, {"head": none})
    assert (found - module(images).mean(0)).abs().max() < 1e-9


def test_few_edges_are_found() -> None:
    network, module, images = small_residual(samples=40)
    graph = interbasis.build(network, images, dtype="float64").graph
    labels = module(images).argmax(1)
    for section in edges_required(network, graph, (images, labels), "accuracy"):
        assert 0 <= section.count < section.possible
        kept = ablate_edges(network, graph, images, {section.source: section.mask})
        assert (kept.argmax(1) == labels).double().mean() == pytest.approx(section.value)
