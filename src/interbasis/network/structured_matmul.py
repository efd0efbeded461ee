"""x ↦ M x for matrices that are mostly zeros or carry streams on as they are.

Sections of language models pass streams on and read one of several; done densely that is most of the work
of a forward pass.
"""

from collections.abc import Callable

import torch
from torch import Tensor

MIN_STRUCTURED_ELEMENTS = 2**14
"""Matrices with fewer entries are applied as they are."""


def applier(matrix: Tensor) -> Callable[[Tensor], Tensor]:  # M [d_out, d_in]; x [..., d_in] -> [..., d_out]
    """The quickest way to apply a matrix; column 0, the constant's, may be full in any case."""
    if matrix.numel() < MIN_STRUCTURED_ELEMENTS or matrix.shape[1] < 2 or len(matrix) == 0:
        return lambda x: x @ matrix.T
    constant, rest = matrix[:, 0], matrix[:, 1:]
    filled = rest != 0
    if filled.sum(1).max() <= 1:
        index = filled.int().argmax(1)
        weight = rest.gather(1, index[:, None])[:, 0]
        return lambda x: x[..., 1:][..., index] * weight + x[..., :1] * constant
    left, right = _range(filled.any(0))
    top, bottom = _range(filled.any(1) | (constant != 0))
    if (right - left) * (bottom - top) > 0.7 * matrix.numel():
        return lambda x: x @ matrix.T
    block, below = rest[top:bottom, left:right], len(matrix) - bottom

    def apply(x: Tensor) -> Tensor:
        inner = x[..., 1 + left : 1 + right] @ block.T + x[..., :1] * constant[top:bottom]
        return torch.nn.functional.pad(inner, (top, below)) if top or below else inner

    return apply


def multiplications(matrix: Tensor) -> int:
    """How many there are when `applier` applies a matrix to a vector."""
    if matrix.numel() < MIN_STRUCTURED_ELEMENTS or matrix.shape[1] < 2 or len(matrix) == 0:
        return matrix.numel()
    filled = matrix[:, 1:] != 0
    if filled.sum(1).max() <= 1:
        return len(matrix)
    left, right = _range(filled.any(0))
    top, bottom = _range(filled.any(1) | (matrix[:, 0] != 0))
    size = (right - left) * (bottom - top)
    return matrix.numel() if size > 0.7 * matrix.numel() else size


def _range(used: Tensor) -> tuple[int, int]:
    """From the first to the last that is used."""
    where = used.nonzero()
    return (int(where[0]), int(where[-1]) + 1) if len(where) else (0, 0)
