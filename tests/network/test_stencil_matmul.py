"""Matrices on the patches of a stencil by the quickest way, against patches that are made."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from cases import normal
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_matmul import stencil_applier
from reference import relative_error
from stencil_cases import Geometry, as_activations, geometries


def on_patches(stencil: Stencil, matrix: Tensor, f: Tensor) -> Tensor:
    """M p with p = (1, f at every tap without its constant), the constant that of position 0."""
    patches = stencil.patches(f[..., 1:]).flatten(2)
    return f[:, :1, :1] * matrix[:, 0] + patches @ matrix[:, 1:].T


def check(stencil: Stencil, matrix: Tensor, f: Tensor) -> None:
    by_tap = torch.nn.functional.pad(matrix[:, 1:].unflatten(1, (stencil.taps, -1)), (1, 0)).flatten(1)
    whole = torch.cat([matrix[:, :1], by_tap], dim=1)  # columns of the taps' constants are 0
    assert relative_error(stencil_applier(stencil, whole)(f), on_patches(stencil, matrix, f)) <= 1e-12


@settings(max_examples=15)
@given(geometry=geometries())
def test_windows_of_any_geometry(geometry: Geometry) -> None:
    stencil = Stencil.sliding(geometry.grid, geometry.window)
    check(stencil, normal(3, 1 + 4 * stencil.taps, seed=1), as_activations(geometry.images))


@pytest.mark.parametrize("kind", ["groups", "single taps", "flattened", "pointwise"])
def test_matrices_with_zeros(kind: str) -> None:
    geometry = Geometry((5, 6), (3, 2), (1, 1), (1, 1), (1, 0), "zeros", 1)
    stencil = Stencil.sliding(geometry.grid, geometry.window)
    if kind in ("flattened", "pointwise"):
        stencil = getattr(Stencil, kind)(geometry.grid)
    matrix = normal(4, 1 + 4 * stencil.taps, seed=1)
    taps = matrix[:, 1:].unflatten(1, (stencil.taps, 4))
    if kind == "groups":
        taps[:2, :, 2:] = 0
        taps[2:, :, :2] = 0
    if kind == "single taps":
        taps[:, 1:, :2] = 0
        taps[:, :3, 2:] = 0
        taps[:, 4:, 2:] = 0
    check(stencil, matrix, as_activations(geometry.images))
