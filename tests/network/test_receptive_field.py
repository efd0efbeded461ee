"""Receptive fields against what derivatives reach."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from torch import Tensor

from interbasis.network.receptive_field import receptive_fields
from interbasis.network.stencil_section import StencilSection
from stencil_cases import (
    Geometry,
    as_activations,
    convolution_section,
    geometries,
    network_of,
    small_residual,
)


def reached(
    function: StencilSection | Callable[..., Any], f: Tensor, grid: tuple[int, ...]
) -> Tensor:  # [S, dims, 2]
    """Boxes of the pixels with any derivative, over several inputs."""
    J = torch.stack([torch.func.jacrev(lambda x: function(x[None])[0])(x) for x in f])
    J = J[:, :, 1:, :, 1:].abs().amax((0, 2, 4)) > 0  # [S, T]
    boxes = []
    for row in J:
        where = row.view(grid).nonzero()
        boxes.append(torch.stack([where.amin(0), where.amax(0) + 1], 1) / torch.tensor(grid)[:, None])
    return torch.stack(boxes)


@settings(max_examples=15, deadline=None)
@given(geometry=geometries())
def test_of_a_convolution(geometry: Geometry) -> None:
    section = convolution_section(geometry)
    found = receptive_fields(network_of(section), 1)
    assert torch.equal(found, reached(section, as_activations(geometry.images), geometry.grid))


def test_through_a_residual_network() -> None:
    network, _, images = small_residual(samples=8)

    def to_block(f: Tensor) -> Tensor:
        for section in network.sections[:3]:
            f = section(f)
        return f

    expected = reached(to_block, network.prefix(images), (8, 8))
    assert torch.equal(receptive_fields(network, 3), expected)
    assert torch.equal(receptive_fields(network, 0)[9], torch.tensor([[1, 2], [1, 2]]) / 8)
    whole = receptive_fields(network, 7)
    assert whole.tolist() == [[[0, 1], [0, 1]]]
