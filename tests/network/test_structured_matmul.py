"""Matrices that are mostly zeros are applied as such, with the same result."""

import pytest
import torch

from cases import normal
from interbasis.network import structured_matmul


def test_sparse_matrices_are_applied_as_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured_matmul, "MIN_STRUCTURED_ELEMENTS", 0)
    x = normal(2, 3, 7)
    carry = torch.zeros(9, 7).double()
    carry[2:6, 1:5] = 1.7 * torch.eye(4)
    block = torch.zeros(9, 7).double()
    block[3:5, 2:4] = normal(2, 2)
    plain = torch.zeros(9, 7).double()
    plain[2:6, 2:6] = torch.eye(4)
    scattered = torch.zeros(9, 7).double()
    scattered[[1, 2, 5], [3, 1, 5]] = 1.0
    centred = torch.zeros(7, 7).double()
    centred[2:6, 3:7] = torch.eye(4) - 0.25
    centred[0, 1], centred[6, 2] = 1, 1.3
    nearly = centred.clone()
    nearly[3, 4] += 1e-3
    below_constant = normal(9, 7)
    below_constant[0] = 0
    for matrix in (
        carry,
        plain,
        scattered,
        centred,
        nearly,
        centred[2:6],
        below_constant,
        block,
        normal(9, 7),
        torch.zeros(4, 7).double(),
        normal(5, 1),
        torch.zeros(0, 7).double(),
    ):
        for constant in (0.0, 1.0):
            matrix = matrix.clone()
            matrix[:, 0] += constant * normal(len(matrix))
            some = x[..., : matrix.shape[1]]
            assert torch.allclose(structured_matmul.applier(matrix)(some), some @ matrix.T, atol=1e-14)


def test_products_are_added_in_place() -> None:
    x, y = normal(2, 3, 6), normal(2, 3, 9, seed=1)
    carried = torch.zeros(9, 6).double()
    carried[2:6, 1:5] = torch.eye(4)
    block = torch.zeros(9, 6).double()
    block[3:5, 2:4] = normal(2, 2)
    for matrix in (carried, 2 * carried, block, normal(9, 6), torch.zeros(9, 6).double()):
        expected = y + x @ matrix.T
        result = y.clone()
        assert structured_matmul.adder(matrix)(result, x) is result
        assert torch.allclose(result, expected, atol=1e-14)
    assert torch.equal(structured_matmul.adder(torch.zeros(9, 0).double())(y.clone(), x[..., :0]), y)
