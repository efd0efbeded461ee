"""Grams of Jacobians as products, against the matrices multiplied out."""

import pytest
import torch

from cases import normal
from interbasis.network.jacobian_gram import JacobianGram, Terms
from reference import relative_error


def gram(inner: int | None, width: int) -> JacobianGram:
    root = normal(inner or width, 9, seed=1)
    noise = normal(2, inner or width, inner or width, seed=3)
    return JacobianGram(None if inner is None else normal(inner, width), root @ root.T, noise)


@pytest.mark.parametrize("inner", [None, 3, 8])
def test_products_are_those_of_the_matrix(inner: int | None) -> None:
    one, directions = gram(inner, 5), normal(4, 5, seed=2)
    X = torch.eye(5).double() if one.X is None else one.X
    M = X.T @ one.K @ X
    assert relative_error(one.matrix, M) <= 1e-14
    assert relative_error(one.along(directions), (directions @ M @ directions.T).diagonal()) <= 1e-13
    projected = directions @ X.T  # [r, k]
    assert relative_error(one.magnitudes_along(directions), projected.square() @ one.K.diagonal()) <= 1e-13
    bounds = (directions.abs() @ X.abs().T).square() @ one.K.diagonal()
    assert relative_error(one.products_along(directions), bounds) <= 1e-13
    assert one.noise is not None
    assert relative_error(one.deviations(directions), projected @ one.noise @ projected.T) <= 1e-13


@pytest.mark.parametrize("inner", [None, 3, 8])
@pytest.mark.parametrize("factored", [False, True])
def test_eigenvectors_on_either_side(inner: int | None, factored: bool) -> None:
    one, W = gram(inner, 5), normal(4, 5, seed=2)
    M = W @ one.matrix @ W.T
    values, rows = one.eigenbasis(W, factored)
    count = min(4, inner or 5)
    assert relative_error(values[:count], torch.linalg.eigvalsh(M).flip(0)[:count]) <= 1e-10
    assert (rows[:count] @ rows[:count].T - torch.eye(count)).abs().max() <= 1e-12
    assert (rows[:count] @ M - values[:count, None] * rows[:count]).abs().max() <= 1e-9 * values[0]


def test_terms_take_the_place_of_a_product_that_was_multiplied_out() -> None:
    rows, sizes, directions = normal(6, 2), normal(6, seed=1).abs(), normal(3, 5, seed=2)
    one = JacobianGram(None, torch.eye(5).double(), terms=(Terms(slice(1, 3), rows, sizes),))
    expected = (directions[:, 1:3] @ rows.T).square() @ sizes
    assert relative_error(one.magnitudes_along(directions), expected) <= 1e-14
    assert one.deviations(directions) is None
