import torch
from torch import Tensor

from interbasis.numerics.joint_diagonalisation import joint_rotation
from interbasis.numerics.linalg import haar_rotation


def off_diagonal(matrices: Tensor) -> Tensor:
    return (matrices - torch.diag_embed(matrices.diagonal(dim1=1, dim2=2))).square().sum()


def test_matrices_with_common_eigenvectors_become_diagonal() -> None:
    for width in (1, 2, 5, 8):
        V = haar_rotation(width, (0, width))
        values = torch.randn(4, width, dtype=torch.float64, generator=torch.Generator().manual_seed(width))
        matrices = V.T @ torch.diag_embed(values) @ V
        R = joint_rotation(matrices)
        assert (R @ R.T - torch.eye(width)).abs().max() <= 1e-12
        assert off_diagonal(R @ matrices @ R.T) <= 1e-20


def test_one_matrix_is_an_eigendecomposition() -> None:
    matrix = torch.randn(7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = matrix + matrix.T
    R = joint_rotation(matrix[None])
    found = (R @ matrix @ R.T).diagonal().sort().values
    assert (found - torch.linalg.eigvalsh(matrix)).abs().max() <= 1e-10


def test_where_nothing_is_gained_nothing_is_turned() -> None:
    assert torch.equal(joint_rotation(torch.eye(5).expand(3, 5, 5)), torch.eye(5, dtype=torch.float64))


def test_matrices_without_common_eigenvectors_end_at_a_minimum() -> None:
    """No small rotation of any pair of coordinates makes the matrices more diagonal together."""
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(3, 6, 6, dtype=torch.float64, generator=generator)
    matrices = matrices + matrices.mT
    R = joint_rotation(matrices)
    turned = R @ matrices @ R.T
    least = off_diagonal(turned)
    assert least < off_diagonal(matrices)
    for p in range(6):
        for q in range(p + 1, 6):
            for angle in (-0.01, 0.01):
                small = torch.eye(6, dtype=torch.float64)
                small[[p, q], [p, q]] = torch.tensor(angle).double().cos()
                small[p, q], small[q, p] = torch.tensor([angle, -angle]).double().sin()
                assert off_diagonal(small @ turned @ small.T) >= least
