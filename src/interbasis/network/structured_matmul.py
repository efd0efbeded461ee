"""x ↦ M x for matrices that are mostly zeros, carry streams on as they are, or take their mean away.

Sections of language models pass streams on, read one of several and centre them; done densely that is most of
the work of a forward pass.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MIN_STRUCTURED_ELEMENTS = 2**12
"""Matrices with fewer entries are applied as they are."""


def applier(matrix: Tensor) -> Callable[[Tensor], Tensor]:  # M [d_out, d_in]; x [..., d_in] -> [..., d_out]
    """The quickest way to apply a matrix; column 0, the constant's, may be full in any case."""
    if matrix.numel() < MIN_STRUCTURED_ELEMENTS or matrix.shape[1] < 2 or len(matrix) == 0:
        return lambda x: x @ matrix.T
    constant, linear = matrix[:, 0], matrix[:, 1:]
    filled = linear != 0
    if filled.sum(1).max() <= 1:
        return _carrying(constant, linear)
    if (centring := _Centring.from_rows(linear)) is not None:
        return centring.applier(matrix)
    left, right = index_range(filled.any(0))
    top, bottom = index_range(filled.any(1) | (constant != 0))
    if (right - left) * (bottom - top) > 0.7 * matrix.numel():
        left, right = 0, matrix.shape[1] - 1
    constant, below, with_constant = constant[top:bottom], len(matrix) - bottom, left == 0
    block = matrix[top:bottom, (0 if with_constant else 1 + left) : 1 + right]

    def apply(x: Tensor) -> Tensor:
        # 769 rows of which the constant's is zero would take half as long again as the other 768
        if with_constant:
            inner = x[..., : 1 + right] @ block.T
        else:
            inner = (x[..., 1 + left : 1 + right] @ block.T).addcmul_(x[..., :1], constant)
        return torch.nn.functional.pad(inner, (top, below)) if top or below else inner

    return apply


def adder(matrix: Tensor) -> Callable[[Tensor, Tensor], Tensor]:  # M [d_out, d_in]
    """Return a function of y and x that adds M x to y [..., d_out] in place, x [..., d_in], and returns y.

    Rows and columns that hold nothing are left out. y is contiguous.
    """
    top, bottom = index_range((matrix != 0).any(1))
    left, right = index_range((matrix != 0).any(0))
    block = matrix[top:bottom, left:right]
    is_carried = len(block) == right - left and torch.equal(block, torch.eye(len(block)).to(block))

    def add(y: Tensor, x: Tensor) -> Tensor:
        part, x = y.view(-1, y.shape[-1])[:, top:bottom], x[..., left:right].flatten(0, -2)
        if is_carried:
            part += x
        else:
            part.addmm_(x, block.T)
        return y

    return add


def transposed_applier(matrix: Tensor) -> Callable[[Tensor], Tensor]:  # M [d_out, d_in]
    """The quickest way to apply Mᵀ, x [..., d_out] -> [..., d_in]; the constant's column by itself."""
    if matrix.shape[1] < 2:
        return lambda x: x @ matrix
    constant, linear = matrix[:, :1], applier(matrix[:, 1:].T.contiguous())
    return lambda x: torch.cat([x @ constant, linear(x)], dim=-1)


def _carrying(constant: Tensor, linear: Tensor) -> Callable[[Tensor], Tensor]:
    """Apply rows with one entry at most beside the constant's; a stream in one piece is carried as such."""
    index = (linear != 0).int().argmax(1)
    weight = linear.gather(1, index[:, None])[:, 0]
    top, bottom = index_range(weight != 0)
    left, count, below = 1 + int(index[top]) if bottom else 1, bottom - top, len(linear) - bottom
    steps = torch.arange(count, device=index.device)
    if not (index[top:bottom] == index[top : top + 1] + steps).all() or not (weight[top:bottom] == 1).all():
        return lambda x: x[..., 1:][..., index] * weight + x[..., :1] * constant
    used = constant.nonzero()[:, 0].tolist()

    def apply(x: Tensor) -> Tensor:
        part = x[..., left : left + count]
        if len(used) > 1:
            carried = x[..., :1] * constant
            carried[..., top:bottom] += part
            return carried
        carried = torch.nn.functional.pad(part, (top, below))
        for row in used:  # mostly the constant itself
            carried[..., row] += constant[row] * x[..., 0]
        return carried

    return apply


class _Centring(NamedTuple):
    """Rows in the middle of a matrix that are α x + β Σ x of some neighbouring coordinates x."""

    top: int
    bottom: int
    columns: slice
    scale: Tensor  # α
    shared: Tensor  # β

    @classmethod
    def from_rows(cls, matrix: Tensor) -> "_Centring | None":
        """Find such rows; None unless all rows with more than one entry are among them."""
        several = (matrix != 0).sum(1) > 1
        top, bottom = index_range(several)
        left, right = index_range((matrix[top:bottom] != 0).any(0))
        block = matrix[top:bottom, left:right]
        if len(block) < 2 or len(block) != right - left:
            return None
        shared, scale = block[0, 1], block[0, 0] - block[0, 1]
        off_diagonal = block - block.diagonal().diag()
        same = (off_diagonal == shared * (1 - torch.eye(len(block)).to(block))).all()
        if not same or not (block.diagonal() == block[0, 0]).all():
            return None
        return cls(top, bottom, slice(1 + left, 1 + right), scale, shared)

    def applier(self, matrix: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function that applies the matrix with these rows, its first column the constant's."""
        above, below = applier(matrix[: self.top]), applier(matrix[self.bottom :])
        constant = matrix[self.top : self.bottom, 0]
        biased, whole = bool(constant.any()), self.bottom - self.top == len(matrix)

        def apply(x: Tensor) -> Tensor:
            x_part = x[..., self.columns]
            inner = self.scale * x_part + self.shared * x_part.sum(-1, keepdim=True)
            if biased:
                inner = inner + x[..., :1] * constant
            return inner if whole else torch.cat([above(x), inner, below(x)], dim=-1)

        return apply


def index_range(used: Tensor) -> tuple[int, int]:
    """First index that is used, and one past the last; (0, 0) where none is."""
    indices = used.nonzero()
    return (int(indices[0]), int(indices[-1]) + 1) if len(indices) else (0, 0)
