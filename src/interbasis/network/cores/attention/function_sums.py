"""Sums over the positions on the other side, once per function of the position that turns are made of."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

ROWS_AT_ONCE = 288
"""Positions times functions whose sums are one product: fewer skip more of what attention does not see."""
MIN_POSITIONS, MAX_POSITIONS = 8, 128
"""Positions that are summed for at once, however many or few functions there are."""


class Sides(NamedTuple):
    """Positions a that something is summed for, and positions b that it is summed over."""

    x: Tensor  # [A, k]
    f: Tensor  # [B, r]
    weights: Tensor  # [A, B]
    seen_by: Callable[[slice], slice]
    """The positions b whose weights for some positions a are not all 0."""


def add_by_functions(result: Tensor, sides: Sides, functions: Tensor, turns: Tensor, read: Tensor) -> None:
    """Add Σ_m x_aᵀD_m c_j Σ_b w_ab U_m(b) f_jb to result [A, r].

    functions U [B, n], turns D [n, k, k], read c_j [k, r].
    """
    x, f, weights, seen_by = sides
    turned = torch.einsum("ak,mkl->aml", x, turns)  # x_aᵀD_m [A, n, k]
    at_once = min(MAX_POSITIONS, max(MIN_POSITIONS, ROWS_AT_ONCE // max(1, len(turns))))
    functions = functions.T.contiguous()
    for start in range(0, len(x), at_once):
        some = slice(start, min(start + at_once, len(x)))
        seen = seen_by(some)
        products = weights[some, None, seen] * functions[:, seen]  # [a, n, b]
        sums = products.flatten(0, 1) @ f[seen]  # [a·n, r]
        pairs = turned[some].flatten(0, 1) @ read
        if len(turns) == 1:
            result[some].addcmul_(sums, pairs)
        else:
            result[some] += sums.mul_(pairs).view(*products.shape[:2], -1).sum(1)
