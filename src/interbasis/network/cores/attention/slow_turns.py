"""Turns of slow coordinates by few functions of the position.

Most frequencies of a head are low. Over the positions of a sequence, cos tθ_e and sin tθ_e of all slow pairs
are, to rounding, combinations of a few functions U_m(t), so that on these coordinates

    R_t = Σ_m U_m(t) D_m,

with constant D_m, and sums over queries and keys go in the order of attention without rotary positions
(`edges.py`), once per function. Coordinates that are not turned have frequency 0 and the function 1.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import AttentionShape, Heads
from interbasis.network.cores.attention.rotary import Rotary

NO_TURNS = Rotary(())
POSITIONS_AT_ONCE = 64
"""The number of positions is rounded up to multiples of this, so that few functions have to be made."""
ELEMENTWISE = 60
"""Operations of a matrix product that take as long as what is done elementwise per function and entry."""
MAX_LOOKED_AT = 512
"""Positions by which functions are counted."""
WORTH_WHILE = 0.9
"""The share of the operations that slow coordinates must leave to be treated by themselves."""


@dataclass(frozen=True, eq=False)
class SlowTurns:
    """Which coordinates of a head are slow, and their turns."""

    slow: Tensor  # [k], coordinates: those that are not turned, and pairs of the slowest ones
    fast: Tensor  # [2p], the two of a pair side by side
    waves: Tensor  # exp(−itθ_e) of the fast pairs, [positions, p]
    functions: Tensor  # U [positions, n]
    turns: Tensor  # D [n, k, k]

    @classmethod
    def of(cls, x: Heads, features: int) -> "SlowTurns":
        """Chosen by operations, for the queries and keys of x and sums over so many features."""
        rotary, width, end = x.shape.rotary or NO_TURNS, x.shape.width, x.first + x.k.shape[2]
        first, _ = split(x.shape, (end, x.k.shape[2]), features, x.v.dtype)
        return cls._from(rotary, width, first, end + -end % POSITIONS_AT_ONCE, x.v)

    @classmethod
    def of_all(cls, x: Heads) -> "SlowTurns":
        """All coordinates as slow ones."""
        end = x.first + x.k.shape[2]
        return cls._from(x.shape.rotary or NO_TURNS, x.shape.width, 0, end + -end % POSITIONS_AT_ONCE, x.v)

    @classmethod
    def _from(cls, rotary: Rotary, width: int, first: int, end: int, like: Tensor) -> "SlowTurns":
        pairs, order = len(rotary.frequencies), _slowest_last(rotary)
        fast, slow = order[:first], order[first:]
        rest = torch.arange(2 * pairs, width)
        cos, sin = rotary.waves(torch.arange(end, device=like.device), like)
        functions, coefficients = _functions(rotary, first, 2 * pairs < width, end, like.dtype)
        return cls(
            torch.cat([slow, slow + pairs, rest]).to(like.device),
            torch.stack([fast, fast + pairs], dim=1).flatten().to(like.device),
            torch.complex(cos, -sin)[:, fast.to(like.device)],
            functions.to(like),
            _matrices(coefficients, len(slow), len(rest)).to(like),
        )

    def turned_back(self, x: Tensor, positions: Tensor) -> Tensor:
        """x R_t of slow coordinates; x [T, k], positions [T]."""
        by_function = torch.einsum("ti,nik->tnk", x, self.turns)
        return torch.einsum("tn,tnk->tk", self.functions[positions], by_function)


def split(
    shape: AttentionShape, positions: tuple[int, int], features: int, dtype: torch.dtype
) -> tuple[int, int]:
    """Fast pairs, and functions for the other coordinates; positions up to an end, and how many are keys."""
    end, keys = positions
    rotary, end = shape.rotary or NO_TURNS, end + -end % POSITIONS_AT_ONCE
    seen = keys * (0.6 if shape.causal else 1.0)  # blocks see a little more than half
    first = first_slow(rotary, shape.width, end, (seen, features), dtype)
    return first, _count(rotary, first, shape.turned < shape.width, end, dtype)


def count_all(shape: AttentionShape, end: int, dtype: torch.dtype) -> int:
    """Functions for all coordinates, at positions up to an end."""
    return _count(
        shape.rotary or NO_TURNS, 0, shape.turned < shape.width, end + -end % POSITIONS_AT_ONCE, dtype
    )


def _slowest_last(rotary: Rotary) -> Tensor:  # [p]
    return torch.tensor(rotary.frequencies, dtype=torch.float64).abs().argsort(descending=True, stable=True)


@lru_cache(maxsize=256)
def first_slow(rotary: Rotary, width: int, end: int, sums: tuple[float, int], dtype: torch.dtype) -> int:
    """How many pairs, the fastest, are not slow, for sums over so many keys and features.

    Slow coordinates share one product with all keys per function; a fast one has h entries in a bracket per
    position, which are summed over what a position sees, and then over positions, per feature.
    """
    seen, features = sums
    pairs, some_rest = len(rotary.frequencies), 2 * len(rotary.frequencies) < width

    def operations(first: int) -> float:
        slow = width - 2 * first
        functions = _count(rotary, first, some_rest, end, dtype)
        return functions * features * (seen + slow + ELEMENTWISE / 2) + width * 2 * first * (features + seen)

    everything = operations(pairs)
    best = min(range(pairs + 1), key=operations)
    return best if operations(best) <= WORTH_WHILE * everything else pairs


@lru_cache(maxsize=1024)
def _count(rotary: Rotary, first: int, some_rest: bool, end: int, dtype: torch.dtype) -> int:
    """How many functions there are, about: of long sequences, not all positions are looked at."""
    positions = torch.linspace(0, end - 1, min(end, MAX_LOOKED_AT), dtype=torch.float64)
    return int(_needed(torch.linalg.svdvals(_waves(rotary, first, some_rest, positions)), dtype).sum())


@lru_cache(maxsize=64)
def _functions(
    rotary: Rotary, first: int, some_rest: bool, end: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Orthonormal U [end, n], and the coordinates in it of cos, sin of the slow pairs, and 1, [2k + 1, n].

    Singular vectors of these functions, as many as the dtype can tell from rounding.
    """
    waves = _waves(rotary, first, some_rest, torch.arange(end, dtype=torch.float64))
    vectors, values, _ = torch.linalg.svd(waves, full_matrices=False)
    functions = vectors[:, _needed(values, dtype)]
    return functions, (functions.T @ waves).T


def _waves(rotary: Rotary, first: int, some_rest: bool, positions: Tensor) -> Tensor:  # [T] -> [T, 2k + 1]
    slow = torch.tensor(rotary.frequencies, dtype=torch.float64)[_slowest_last(rotary)[first:]]
    angle, one = positions[:, None] * slow, torch.full_like(positions, float(some_rest))[:, None]
    return torch.cat([rotary.stretch * angle.cos(), rotary.stretch * angle.sin(), one], dim=1)


def _needed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Which singular values are more than rounding."""
    return (values > torch.finfo(dtype).eps / 16 * values[0]) & (values > 0)


def _matrices(
    coefficients: Tensor, pairs: int, rest: int
) -> Tensor:  # [2k + 1, n] -> [n, 2k + rest, 2k + rest]
    cos, sin, one = coefficients.T.tensor_split([pairs, 2 * pairs], dim=1)  # [n, k], [n, k], [n, 1]
    cos, sin = torch.diag_embed(cos), torch.diag_embed(sin)
    turned = torch.cat([torch.cat([cos, -sin], dim=2), torch.cat([sin, cos], dim=2)], dim=1)
    result = coefficients.new_zeros(len(turned), 2 * pairs + rest, 2 * pairs + rest)
    result[:, : 2 * pairs, : 2 * pairs] = turned
    result[:, 2 * pairs :, 2 * pairs :] = one[:, :, None] * torch.eye(rest, dtype=one.dtype)
    return result
