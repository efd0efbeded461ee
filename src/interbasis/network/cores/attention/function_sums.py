"""Sums over the positions on the other side, once per function of the position that turns are made of."""

from collections.abc import Callable

import torch
from torch import Tensor

ROWS_AT_ONCE = 288
"""Positions times functions whose sums are one product: fewer skip more of what attention does not see."""
MIN_POSITIONS, MAX_POSITIONS = 8, 128


def add_by_functions(
    result: Tensor,
    sides: tuple[Tensor, Tensor],
    weights: Tensor,
    functions: Tensor,
    turns: Tensor,
    read: Tensor,
    seen_by: Callable[[slice], slice],
) -> None:
    """Add Σ_m x_aᵀD_m c_j Σ_b w_ab U_m(b) f_jb to result [A, r].

    sides x [A, k] and f [B, r], weights [A, B], functions U [B, n], turns D [n, k, k], read c_j [k, r];
    ``seen_by`` are the positions b of weights that some positions a have.
    """
    x, f = sides
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
