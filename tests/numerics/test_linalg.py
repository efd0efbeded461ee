"""Decompositions, floors and rotations by themselves."""

import torch

from cases import normal
from interbasis.numerics.linalg import Cut, Floor, haar_rotation, symmetric_product
from reference import relative_error


def test_haar_rotations_are_rotations_without_a_preferred_direction():
    rotations = torch.stack([haar_rotation(3, (seed, 0)) for seed in range(500)])
    assert not torch.equal(haar_rotation(3, (0, 1)), haar_rotation(3, (1, 0)))
    assert (rotations @ rotations.mT - torch.eye(3)).abs().max() <= 1e-12
    assert rotations.mean(0).abs().max() < 0.12
    assert (rotations.square().mean(0) - 1 / 3).abs().max() < 0.06


def test_floor_never_takes_a_negative_eigenvalue_for_signal():
    values = torch.tensor([1.0, 0.125, 2.0**-60, -0.125]).double()
    cut = Cut.of(values, Floor(1e-15, 0).levels(values, 0.0, values))
    assert (cut.kept, cut.dropped, cut.smallest_kept, cut.largest_dropped) == (2, 2, 0.125, 2.0**-60)


def test_symmetric_products_by_tiles():
    x = normal(30, 1300)
    assert relative_error(symmetric_product(x), x.T @ x) <= 1e-13
