"""Slowly turned coordinates of a head: their turns are combinations of few functions of the position.

Most rotary frequencies are low. Over the positions of a sequence, cos tθ and sin tθ of all slow pairs are, to
rounding, combinations of N functions U_m(t), so that on these coordinates

    R_t = Σ_m U_m(t) D_m

with constant matrices D_m, and sums over positions go in the order of attention without rotary positions,
once per function. Coordinates that are not turned have the function 1.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import AttentionShape, Heads

ROWS_PER_PRODUCT = 288
"""Positions times functions whose sums are one product: fewer skip more of what attention does not see."""
POSITIONS_PER_TABLE = 64
"""Functions are tabulated for a multiple of so many positions, so that few tables are made."""
ELEMENTWISE = 32
"""Multiplications of a matrix product in the time that the elementwise work takes per function and feature;
15 to 60 lead to about the same choices."""


class SlowTurns(NamedTuple):
    """Slow coordinates of a head and their turns."""

    slow: Tensor  # [k]: coordinates that are not turned, and both of every slow pair
    fast: Tensor  # [2p]: coordinates of the fast pairs, both of a pair side by side
    functions: Tensor  # U [positions, N]
    matrices: Tensor  # D [N, k, k]

    @classmethod
    def from_heads(cls, x: Heads, fast: int) -> "SlowTurns":
        """Turns of all but the ``fast`` fastest pairs, at the positions of the keys."""
        return _turns(x.shape, fast, _table_end(x), x.k.dtype, x.k.device)

    def sums(
        self,
        x: Tensor,
        read: Tensor,
        weights: Tensor,
        f: Tensor,
        positions: Tensor,
        seen: Callable[[slice], slice],
    ) -> Tensor:
        """Σ_b w_ab f_jb x_aᵀR_b c_j = Σ_m x_aᵀD_m c_j (w U_m f)_aj over slow coordinates, [A, r].

        x [A, h], read c_j [h, r], weights [A, B], f [B, r] at ``positions`` [B]; ``seen`` gives the range of
        b outside of which the weights of a range of a are 0.
        """
        turned = torch.einsum("ak,mkl->aml", x[:, self.slow], self.matrices)  # x_aᵀD_m
        read = read[self.slow]
        functions = self.functions[positions].T.contiguous()  # [N, B]
        result = f.new_empty(len(x), f.shape[1])
        step = max(1, ROWS_PER_PRODUCT // len(functions))
        for start in range(0, len(x), step):
            rows = slice(start, min(start + step, len(x)))
            columns = seen(rows)
            products = weights[rows, None, columns] * functions[:, columns]  # [a, N, b]
            sums = products.flatten(0, 1) @ f[columns]  # [a·N, r]
            pairs = turned[rows].flatten(0, 1) @ read
            result[rows] = sums.mul_(pairs).view(*products.shape[:2], -1).sum(1)
        return result


def fast_pairs(x: Heads, features: int) -> int:
    """Number of pairs, the fastest, that are summed in less time with brackets than by functions.

    Per query and per key, each of which sees T positions of the other side, N functions take N r (T + k)
    multiplications for k slow coordinates and r features, and p fast pairs 2 p h (T + r).
    """
    queries, keys, width = x.positions.shape[1], x.k.shape[2], x.shape.width
    seen = queries * keys / (queries + keys) * (1 if x.shape.causal else 2)
    counts = _function_counts(x.shape, _table_end(x), x.k.dtype)

    def multiplications(fast: int) -> float:
        by_functions = counts[fast] * features * (seen + width - 2 * fast + ELEMENTWISE)
        return by_functions + 2 * fast * width * (seen + features)

    return min(range(len(counts)), key=multiplications)


@lru_cache(maxsize=64)
def _function_counts(shape: AttentionShape, end: int, dtype: torch.dtype) -> tuple[int, ...]:
    """Numbers of functions for all pairs, all but the fastest, all but the two fastest, …"""
    triangle = torch.linalg.qr(_waves(shape, end), mode="r").R  # has the singular values of all first columns
    sizes = range(triangle.shape[1], 0, -2)
    return tuple(_count(torch.linalg.svdvals(triangle[:, :size]), dtype) for size in sizes)


@lru_cache(maxsize=64)
def _turns(shape: AttentionShape, fast: int, end: int, dtype: torch.dtype, device: torch.device) -> SlowTurns:
    """Take singular vectors of 1, cos and sin as functions, as many as the dtype can tell from rounding."""
    order, pairs, still = _slowest_first(shape), shape.turned // 2, shape.width - shape.turned
    slow, fastest = order[: pairs - fast], order[pairs - fast :]
    waves = _waves(shape, end)[:, : 1 + 2 * len(slow)]
    vectors, values, _ = torch.linalg.svd(waves, full_matrices=False)
    functions = vectors[:, : _count(values, dtype)]
    coefficients = functions.T @ waves  # [N, 1 + 2p]
    cos, sin = (torch.diag_embed(coefficients[:, start::2]) for start in (1, 2))  # [N, p, p]
    matrices = waves.new_zeros(len(cos), still + 2 * len(slow), still + 2 * len(slow))
    matrices[:, :still, :still] = coefficients[:, :1, None] * torch.eye(still).double()
    matrices[:, still:, still:] = torch.cat([torch.cat([cos, -sin], 2), torch.cat([sin, cos], 2)], 1)
    return SlowTurns(
        torch.cat([torch.arange(shape.turned, shape.width), slow, slow + pairs]).to(device),
        torch.stack([fastest, fastest + pairs], dim=1).flatten().to(device),
        functions.to(device, dtype),
        matrices.to(device, dtype),
    )


def _waves(shape: AttentionShape, end: int) -> Tensor:  # [end, 1 + 2p]
    """1, or 0 where all coordinates are turned, then cos and sin of every pair, from the slowest on."""
    assert shape.rotary is not None
    positions = torch.arange(end, dtype=torch.float64)
    angle = (
        positions[:, None]
        * torch.tensor(shape.rotary.frequencies, dtype=torch.float64)[_slowest_first(shape)]
    )
    waves = shape.rotary.stretch * torch.stack([angle.cos(), angle.sin()], dim=2)
    constant = torch.full_like(positions, float(shape.turned < shape.width))
    return torch.cat([constant[:, None], waves.flatten(1)], dim=1)


def _slowest_first(shape: AttentionShape) -> Tensor:  # [p]
    assert shape.rotary is not None
    return torch.tensor(shape.rotary.frequencies, dtype=torch.float64).abs().argsort(stable=True)


def _count(values: Tensor, dtype: torch.dtype) -> int:
    """Number of singular values that are more than rounding."""
    return int(((values > torch.finfo(dtype).eps / 16 * values[0]) & (values > 0)).sum())


def _table_end(x: Heads) -> int:
    end = x.first + x.k.shape[2]
    return end + -end % POSITIONS_PER_TABLE
