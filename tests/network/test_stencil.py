"""Stencils compute what PyTorch's own layers compute, and count their borders exactly."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from cases import normal
from interbasis import InterbasisError
from interbasis.network.network import NodeLayer
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import (
    StencilSection,
    add_taps,
    averaging_section,
    kernel_taps,
    linear_section,
    maximum_section,
    patch_matrix,
)
from interbasis.network.window import SlidingWindow
from stencil_cases import EXAMPLE, Geometry, as_activations, convolution_section, geometries, small_residual


@settings(max_examples=60, deadline=None)
@given(geometry=geometries(dims=(1, 2, 3)))
def test_convolutions(geometry: Geometry) -> None:
    conv, images = geometry.convolution, geometry.images
    stencil = Stencil.sliding(geometry.grid, geometry.window)
    skip = patch_matrix(stencil, 5, 5, images)
    skip[0, 0], skip[1:, 0] = 1, conv.bias.detach()
    add_taps(skip, stencil, kernel_taps(conv.weight.detach(), geometry.groups), 1, 1)
    section = section_of(stencil, 5, 5, lambda a, b: linear_section(a, b, skip, stencil))
    f, expected = as_activations(images), as_activations(conv(images))
    assert torch.allclose(section(f), expected, atol=1e-13)
    assert torch.allclose(section.patches(f) @ skip.T, expected, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(geometry=geometries(dims=(1, 2, 3)))
def test_classes_are_the_overlaps_of_taps(geometry: Geometry) -> None:
    """Every output belongs to one class, and its pairs are those of taps on the same pixel."""
    stencil = convolution_section(geometry).stencil
    members = torch.cat([one.positions for one in stencil.classes])
    assert torch.equal(members.sort().values, torch.arange(stencil.positions))
    for one in stencil.classes:
        for s in one.positions.tolist():
            inside = stencil.weight[s, :, 0] > 0
            same = stencil.index[s, :, 0][:, None] == stencil.index[s, :, 0]
            expected = (same & inside[:, None] & inside).nonzero().tolist()
            assert sorted(expected) == sorted([k, other] for k, other, _ in one.pairs)
            assert {overlap for _, _, overlap in one.pairs} <= {1.0}


def test_the_interior_is_one_class_and_so_is_every_strip_and_corner() -> None:
    stencil = Stencil.sliding((32, 32), SlidingWindow.from_arguments((3, 3), padding=1))
    assert [len(one.positions) for one in stencil.classes] == [900, 30, 30, 30, 30, 1, 1, 1, 1]
    assert (
        len(
            Stencil.sliding(
                (32, 32), SlidingWindow.from_arguments((3, 3), padding=1, mode="circular")
            ).classes
        )
        == 1
    )
    assert len(Stencil.sliding((32, 32), SlidingWindow.from_arguments((3, 3), 2, padding=1)).classes) == 4


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 1)])
def test_pooling(kernel: int, stride: int, padding: int, ceil: bool) -> None:
    images = normal(2, 3, 9, 10)
    window = replace(SlidingWindow.from_arguments((kernel, kernel), stride, padding=padding), ceil=ceil)
    for counted in (True, False):
        module = nn.AvgPool2d(kernel, stride, padding, ceil, counted)
        stencil = Stencil.average((9, 10), window, count_padding=counted)
        section = section_of(stencil, 4, 4, lambda a, b, s=stencil: averaging_section(a, b, s, images))
        assert torch.allclose(section(as_activations(images)), as_activations(module(images)), atol=1e-14)
    stencil = Stencil.sliding((9, 10), replace(window, mode="inside"))
    section = section_of(stencil, 4, 4, lambda a, b: maximum_section(a, b, stencil, images))
    expected = as_activations(nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)(images - 5))
    assert torch.equal(section(as_activations(images - 5)), expected)


@pytest.mark.parametrize("target", [(1, 1), (4, 3), (9, 10)])
def test_adaptive_pooling(target: tuple[int, int]) -> None:
    images = normal(2, 3, 9, 10)
    f, mean = as_activations(images), Stencil.adaptive((9, 10), target)
    section = section_of(mean, 4, 4, lambda a, b: averaging_section(a, b, mean, images))
    assert torch.allclose(section(f), as_activations(nn.AdaptiveAvgPool2d(target)(images)), atol=1e-14)
    most = Stencil.adaptive((9, 10), target, maximum=True)
    section = section_of(most, 4, 4, lambda a, b: maximum_section(a, b, most, images))
    assert torch.equal(section(f), as_activations(nn.AdaptiveMaxPool2d(target)(images)))


def test_transposed_convolutions() -> None:
    images, conv = normal(2, 3, 4, 5), nn.ConvTranspose2d(3, 4, 3, 2, 1, output_padding=1).double()
    stencil = Stencil.transposed((4, 5), SlidingWindow.from_arguments((3, 3), 2, padding=1), (1, 1))
    skip = patch_matrix(stencil, 5, 4, images)
    skip[0, 0], skip[1:, 0] = 1, conv.bias.detach()
    add_taps(skip, stencil, kernel_taps(conv.weight.detach().transpose(0, 1)), 1, 1)
    section = section_of(stencil, 4, 5, lambda a, b: linear_section(a, b, skip, stencil))
    assert torch.allclose(section(as_activations(images)), as_activations(conv(images)), atol=1e-13)


def test_a_tap_that_is_there_already_is_not_added_again() -> None:
    kernel = Stencil.sliding((8, 8), SlidingWindow.from_arguments((3, 3), 2, padding=1))
    joined, where = kernel.with_taps(Stencil.sliding((8, 8), SlidingWindow.from_arguments((1, 1), 2)))
    assert (joined.taps, where) == (9, [4])
    joined, where = kernel.with_taps(Stencil.average((8, 8), SlidingWindow.from_arguments((2, 2), 2)))
    assert (joined.taps, where) == (10, [9])


def test_a_residual_network_and_its_cuts() -> None:
    network, module, images = small_residual()
    assert (network(images) - module(images)).abs().max() < 1e-12
    part = network.between(["blocks.1.conv1", "blocks.1.conv2", "pool"])
    assert (part(images) - module(images)).abs().max() < 1e-12
    assert [node.grid for node in network.nodes][::3] == [(8, 8), (4, 4), (1, 1)]
    assert (network.to(torch.float32)(images) - module(images)).abs().max() < 1e-5


def test_what_does_not_fit_is_refused() -> None:
    section = convolution_section(EXAMPLE)
    with pytest.raises(InterbasisError, match="node layers on the grids"):
        replace(section, target=NodeLayer("b", 6, grid=(7, 7)))
    with pytest.raises(InterbasisError, match="taps × width columns"):
        replace(section, read=section.read[:, :-1])
    with pytest.raises(InterbasisError, match="as large as the window"):
        Stencil.sliding((2, 2), SlidingWindow.from_arguments((3, 3)))
    with pytest.raises(InterbasisError, match="at most 1"):
        Stencil.sliding((2, 2), SlidingWindow.from_arguments((3, 3), padding=2, mode="reflect"))
    with pytest.raises(InterbasisError, match="between the same grids"):
        section.stencil.with_taps(Stencil.pointwise((3, 3)))


def section_of(
    stencil: Stencil, before: int, after: int, make: Callable[..., StencilSection]
) -> StencilSection:
    return make(NodeLayer("a", before, grid=stencil.source), NodeLayer("b", after, grid=stencil.target))
