"""Σ_t R_tᵀ X_t R_t with X_t = Σ_s w_st q̃^h_s q̃^g_sᵀ, the k,k terms of a pair of heads with rotary positions.

With pairs of coordinates as complex numbers c_e, turning back multiplies c_e by exp(−itθ_e). So the products
c_e conj(c′_e′) and c_e c′_e′, which hold what q̃^h_s q̃^g_sᵀ does, are multiplied by exp(−it(θ_e ∓ θ_e′)): an
entry of the sum over t is a dot product with one function of t.

Most frequencies of a head are low, and over T positions the functions of t with frequencies up to 2θ are, to
rounding, combinations of about 2θT/π + 25 of them (Slepian 1978), U [T, n]. So for pairs of slow coordinates
X_t is not summed for every key: UᵀX is, [n, h²], and takes dot products with the functions' coordinates in U.
There are a few levels of this: coordinates up to a lower frequency have fewer functions again, which are
combinations of those of the level above. A pair of coordinates belongs to the level of the faster one.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise
from operator import mul

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import AttentionShape, Heads

KEYS_AT_ONCE = 128
"""The number of keys is rounded up to multiples of this, so that few functions have to be made."""
MORE_FUNCTIONS = {torch.float64: 25, torch.float32: 17}
"""Functions beyond 2θT/π that describe the band to rounding, about."""
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-8}
"""Singular values below this share of the largest are left out."""
MAX_LEVELS = 4
"""Levels of slow coordinates, the first one with a sum for every key included."""
WORTH_WHILE = 0.93
"""The share of the operations that another level must leave."""


@dataclass(frozen=True, eq=False)
class Level:
    """Pairs of complex coordinates, in order from fast to slow, whose faster one is between two bounds."""

    step: Tensor | None  # from the functions of the level above, or the keys, to its own [T or n′, n]
    first: int  # its own coordinates: first … last − 1
    last: int
    turns: Tensor  # of the products of pairs, [T or n, 2, pairs]

    def products(self, one: Tensor, other: Tensor) -> Tensor:  # [S, p′] each -> [S, 2, pairs]
        """c conj(c′) and c c′: its own coordinates with these and slower ones, then slower with its own."""
        own, rest, slower = self.parts
        count = one.shape[1]
        k, left, m = self.last - self.first, count - self.first, count - self.last
        result = one.new_empty(len(one), 2, k * (left + m))
        for conjugate, second in enumerate((other.conj(), other)):
            upper, lower = result[:, conjugate].split([k * left, m * k], dim=1)
            torch.mul(one[:, own, None], second[:, None, rest], out=upper.unflatten(1, (k, left)))
            torch.mul(one[:, slower, None], second[:, None, own], out=lower.unflatten(1, (m, k)))
        return result

    @property
    def parts(self) -> tuple[slice, slice, slice]:
        """Its own coordinates; these and slower ones; slower ones."""
        return slice(self.first, self.last), slice(self.first, None), slice(self.last, None)


class KeyTurns:
    """The functions of t that the sums over keys are dot products with, the same for all pairs of heads."""

    def __init__(self, x: Heads):
        rotary, keys = x.shape.rotary, x.k.shape[2]
        assert rotary is not None
        self.width, self.like = x.shape.width, x.v
        self.pairs, angles = len(rotary.frequencies), angles_of(x.shape)
        self.length = -(-keys // KEYS_AT_ONCE) * KEYS_AT_ONCE if keys > KEYS_AT_ONCE else keys
        angle = torch.tensor(angles, dtype=torch.float64)
        self.order = angle.argsort(descending=True, stable=True).to(x.v.device)
        positions = torch.arange(x.first, x.first + self.length, device=x.v.device)
        cos, sin = rotary.waves(positions, x.v)  # [T, p]
        waves = torch.complex(cos, -sin)
        still = torch.ones_like(waves[:, :1]).expand(-1, len(angles) - self.pairs)
        waves = torch.cat([waves, still], dim=1)[:, self.order]  # exp(−itθ_e)
        bounds = level_bounds(angles, self.length, x.shape.causal, x.v.dtype)
        self.levels: list[Level] = []
        above: Tensor | None = None  # functions of the level above, as functions of t
        for bound, lower in zip(bounds, (*bounds[1:], -1.0), strict=True):
            functions = band(self.length, bound, x.v.dtype).to(x.v) if bound < math.inf else None
            step = functions if above is None or functions is None else above.T @ functions
            level = Level(step, int((angle > bound).sum()), int((angle > lower).sum()), waves)
            turns = _coordinates(functions, level.products(waves, waves))
            self.levels.append(replace(level, turns=turns))
            above = functions

    def paired(self, q: Tensor) -> Tensor:  # [S, h] -> [S, p′]
        """Coordinates as complex numbers from fast to slow; those that are not turned two by two."""
        turned = 2 * self.pairs
        first, second, rest = q.tensor_split([self.pairs, turned], dim=1)
        rest = torch.nn.functional.pad(rest, (0, rest.shape[1] % 2))
        still = torch.complex(rest[:, ::2], rest[:, 1::2])
        return torch.cat([torch.complex(first, second), still], dim=1)[:, self.order]

    def unpaired(self, both: Tensor) -> Tensor:  # [2, p′, p′] -> [h, h]
        """Back from sums of c conj(c′) and c c′ to those of products of coordinates."""
        back = self.order.argsort()
        one, other = both[:, back[:, None], back]
        real, imaginary = (one + other) / 2, (other - one) / 2  # x x′ + i y x′,  −y y′ + i x y′
        whole = torch.cat(
            [
                torch.cat([real.real, imaginary.imag], dim=1),
                torch.cat([real.imag, -imaginary.real], dim=1),
            ]
        )  # rows x then y, columns x′ then y′
        total, rest = len(one), range(self.width - 2 * self.pairs)
        turned = [*range(self.pairs), *range(total, total + self.pairs)]
        order = torch.tensor([*turned, *(self.pairs + k // 2 + total * (k % 2) for k in rest)])
        order = order.to(whole.device)
        return whole[order[:, None], order]


class KeyBrackets:
    """Running sums over queries of one pair of heads."""

    def __init__(self, turns: KeyTurns):
        self.turns = turns
        self.sums = [
            turns.like.new_zeros(len(some.turns), 2 * some.turns[0].numel()) for some in turns.levels
        ]

    def add(self, first: int, weights: Tensor, one: Tensor, other: Tensor) -> None:
        """Add queries: weights w_st [S, T] of the keys from ``first`` on, q̃^h and q̃^g [S, h]."""
        keys = slice(first, first + weights.shape[1])
        one, other = self.turns.paired(one), self.turns.paired(other)
        for level, total in zip(self.turns.levels, self.sums, strict=True):
            if level.step is not None:
                weights = weights @ level.step[keys]  # Σ_t w_st U_t [S, n]
                keys = slice(None)
            products = torch.view_as_real(level.products(one, other)).flatten(1)
            total[keys].addmm_(weights.T, products)

    def turned_sum(self) -> Tensor:  # [h, h]
        """Σ_t R_tᵀ X_t R_t."""
        count = len(self.turns.order)
        result = self.turns.levels[0].turns.new_zeros(2, count, count)
        for level, total in zip(self.turns.levels, self.sums, strict=True):
            own, rest, slower = level.parts
            upper, lower = result[:, own, rest], result[:, slower, own]
            sums = _dots(total, level.turns.flatten(1)).view(2, -1)
            upper += sums[:, : upper[0].numel()].view_as(upper)
            lower += sums[:, upper[0].numel() :].view_as(lower)
        return self.turns.unpaired(result)


def _dots(brackets: Tensor, functions: Tensor) -> Tensor:  # [T, 2·k], [T, k] -> [k]
    """Σ_t of complex products, a few keys at a time, which stay in the cache."""
    result = functions.new_zeros(functions.shape[1])
    for some, their in zip(brackets.split(32), functions.split(32), strict=True):
        result += (torch.view_as_complex(some.unflatten(1, (-1, 2))) * their).sum(0)
    return result


def angles_of(shape: AttentionShape) -> tuple[float, ...]:
    """Frequencies of a head's pairs of coordinates; 0 for those that are not turned."""
    turned = () if shape.rotary is None else shape.rotary.frequencies
    return (*(abs(angle) for angle in turned), *[0.0] * -(-(shape.width - shape.turned) // 2))


def _coordinates(functions: Tensor | None, waves: Tensor) -> Tensor:  # [T, 2, k] -> [n, 2, k]
    """Coordinates of complex functions of t in U, or the functions themselves."""
    if functions is None:
        return waves
    real = torch.view_as_real(waves)
    coordinates = functions.T @ real.flatten(1)
    return torch.view_as_complex(coordinates.unflatten(1, real.shape[1:]).contiguous())


@lru_cache(maxsize=64)
def level_bounds(
    angles: tuple[float, ...], length: int, causal: bool, dtype: torch.dtype
) -> tuple[float, ...]:
    """The highest frequency of every level, by operations: infinity, then those of slow coordinates."""

    def cost(bounds: tuple[float, ...]) -> float:
        return operations(angles, length, causal, dtype, bounds)

    best: tuple[float, ...] = ()
    for levels in range(1, MAX_LEVELS):
        found = min(combinations(sorted(set(angles), reverse=True), levels), key=cost, default=())
        if not found or cost(found) > WORTH_WHILE * cost(best):
            break
        best = found
    if best and best[0] == max(angles):  # then no sum for every key
        return best
    return (math.inf, *best)


def operations(
    angles: tuple[float, ...], length: int, causal: bool, dtype: torch.dtype, bounds: tuple[float, ...]
) -> float:
    """Multiplications per query and pair of heads, with slow coordinates up to these frequencies."""
    counts, widths = [length / 2 if causal else length], [2 * len(angles)]
    for bound in bounds:
        if bound < math.inf:
            counts.append(2 * bound * length / math.pi + MORE_FUNCTIONS[dtype])
            widths.append(2 * sum(angle <= bound for angle in angles))
    pairs = [one**2 - following**2 for one, following in pairwise([*widths, 0])]
    return sum(map(mul, counts, pairs)) + sum(one * following for one, following in pairwise(counts))


@lru_cache(maxsize=64)
def band(length: int, highest: float, dtype: torch.dtype) -> Tensor:  # [length, n]
    """Orthonormal functions of t that span cos tω and sin tω for all |ω| ≤ 2·highest, to rounding.

    From the singular vectors of as many of these functions as determine the others by interpolation in ω.
    """
    count = math.ceil(0.6 * highest * length) + 40
    nodes = highest * (1 - torch.linspace(0, math.pi, count, dtype=torch.float64).cos())  # Chebyshev's
    angle = (torch.arange(length, dtype=torch.float64) - (length - 1) / 2)[:, None] * nodes
    vectors, values, _ = torch.linalg.svd(torch.cat([angle.cos(), angle.sin()], dim=1), full_matrices=False)
    return vectors[:, values > ROUNDING[dtype] * values[0]]
