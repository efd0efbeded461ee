"""Decompositions, floors and rotations by themselves."""

import torch

from cases import normal
from interbasis.numerics.linalg import (
    Floor,
    SpectrumCut,
    haar_rotation,
    symmetric_product,
    transposed_product,
)
from reference import relative_error


def test_haar_rotations_are_rotations_without_a_preferred_direction() -> None:
    rotations = torch.stack([haar_rotation(3, (seed, 0)) for seed in range(500)])
    assert not torch.equal(haar_rotation(3, (0, 1)), haar_rotation(3, (1, 0)))
    assert (rotations @ rotations.mT - torch.eye(3)).abs().max() <= 1e-12
    assert rotations.mean(0).abs().max() < 0.12
    assert (rotations.square().mean(0) - 1 / 3).abs().max() < 0.06


def test_floor_never_takes_a_negative_eigenvalue_for_signal() -> None:
    values = torch.tensor([1.0, 0.125, 2.0**-60, -0.125]).double()
    cut = SpectrumCut.from_floors(values, Floor(1e-15, 0).levels(values, 0.0, values))
    assert (cut.kept, cut.dropped, cut.smallest_kept, cut.largest_dropped) == (2, 2, 0.125, 2.0**-60)


def test_symmetric_products_by_tiles() -> None:
    x = normal(30, 1300)
    assert relative_error(symmetric_product(x), x.T @ x) <= 1e-13


def test_transposed_products_with_rows_of_one_entry() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    for sparse in ([], [0, 2, 5], list(range(6))):  # no row, some, all with one entry; two share a column
        rows = x.clone()
        for k in sparse:
            rows[k] = 0
            rows[k, k % 4] = x[k, 0]
        rows[sparse[-1:]] = 0  # and one with none
        assert torch.allclose(transposed_product(rows, y), rows.T @ y, rtol=0, atol=1e-14)
