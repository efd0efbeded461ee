"""Σ_t R_tᵀ X_t R_t with X_t = Σ_s w_st q̃^h_s q̃^g_sᵀ, the k,k terms of a pair of heads with rotary positions.

With pairs of coordinates as complex numbers c_e, turning back multiplies c_e by exp(−itθ_e). So the products
c_e conj(c′_e′) and c_e c′_e′, which hold what q̃^h_s q̃^g_sᵀ does, are multiplied by exp(−it(θ_e ∓ θ_e′)): an
entry of the sum over t is a dot product with one function of t.

Most frequencies of a head are low, and over T positions the functions of t with frequencies up to 2θ are, to
rounding, combinations of about 2θT/π + 25 of them (Slepian 1978), U [T, n]. So for pairs of slow coordinates
X_t is not summed for every key: UᵀX is, [n, h²], and takes dot products with the functions' coordinates in U.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import Heads

KEYS_AT_ONCE = 128
"""The number of keys is rounded up to multiples of this, so that few functions have to be made."""
MORE_FUNCTIONS = 25
"""Functions beyond 2θT/π that describe the band to rounding, about."""
WORTH_WHILE = 0.85
"""The share of the operations that slow coordinates must leave to be treated by themselves."""


class KeyTurns:
    """The functions of t that the sums over keys are dot products with, the same for all pairs of heads."""

    def __init__(self, x: Heads):
        rotary, keys = x.shape.rotary, x.k.shape[2]
        assert rotary is not None
        self.rotary, self.width = rotary, x.shape.width
        pairs, extra = len(rotary.frequencies), -(-(self.width - x.shape.turned) // 2)
        self.length = -(-keys // KEYS_AT_ONCE) * KEYS_AT_ONCE if keys > KEYS_AT_ONCE else keys
        angles = torch.tensor([*rotary.frequencies, *[0.0] * extra], dtype=torch.float64).abs()
        highest = _highest_slow(angles, self.length, x.shape.causal)
        is_slow = angles <= highest
        self.slow, self.fast = (some.nonzero()[:, 0].to(x.v.device) for some in (is_slow, ~is_slow))
        positions = torch.arange(x.first, x.first + self.length, device=x.v.device)
        cos, sin = rotary.waves(positions, x.v)  # [T, p]
        waves = torch.complex(cos, -sin)
        waves = torch.cat([waves, torch.ones_like(waves[:, :1]).expand(-1, extra)], dim=1)  # exp(−itθ_e)
        self.pairs = pairs
        everything = torch.arange(len(angles), device=x.v.device)
        self.functions = x.v.new_zeros(self.length, 0)
        self.fast_all = _products(waves[:, self.fast], waves[:, everything])
        self.slow_fast = _products(waves[:, self.slow], waves[:, self.fast])
        self.slow_slow = waves.new_zeros(0, 0)
        if len(self.slow):
            self.functions = band(self.length, highest).to(x.v)  # U [T, n]
            slow = _products(waves[:, self.slow], waves[:, self.slow])
            self.slow_slow = torch.view_as_complex(
                (self.functions.T @ torch.view_as_real(slow).flatten(1)).unflatten(1, (-1, 2))
            )

    def paired(self, q: Tensor) -> Tensor:  # [S, h] -> [S, p′]
        """Coordinates as complex numbers; those that are not turned two by two in their order."""
        turned = 2 * self.pairs
        first, second, rest = q.tensor_split([self.pairs, turned], dim=1)
        rest = torch.nn.functional.pad(rest, (0, rest.shape[1] % 2))
        return torch.cat([torch.complex(first, second), torch.complex(rest[:, ::2], rest[:, 1::2])], dim=1)

    def unpaired(self, both: Tensor) -> Tensor:  # [2, p′, p′] -> [h, h]
        """Back from sums of c conj(c′) and c c′ to those of products of coordinates."""
        one, other = both
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
        like = turns.functions
        self.fast_all = like.new_zeros(turns.length, 2 * turns.fast_all.shape[1])
        self.slow_fast = like.new_zeros(turns.length, 2 * turns.slow_fast.shape[1])
        self.slow_slow = like.new_zeros(like.shape[1], 2 * turns.slow_slow.shape[1])

    def add(self, first: int, weights: Tensor, one: Tensor, other: Tensor) -> None:
        """Add queries: weights w_st [S, T] of the keys from ``first`` on, q̃^h and q̃^g [S, h]."""
        turns, keys = self.turns, slice(first, first + weights.shape[1])
        one, other = turns.paired(one), turns.paired(other)
        if len(turns.fast):
            self.fast_all[keys].addmm_(weights.T, _real(_products(one[:, turns.fast], other)))
        if len(turns.slow):
            slow = one[:, turns.slow]
            self.slow_fast[keys].addmm_(weights.T, _real(_products(slow, other[:, turns.fast])))
            few = weights @ turns.functions[keys]  # Σ_t w_st U_t [S, n]
            self.slow_slow.addmm_(few.T, _real(_products(slow, other[:, turns.slow])))

    def turned_sum(self) -> Tensor:  # [h, h]
        """Σ_t R_tᵀ X_t R_t."""
        turns = self.turns
        slow, fast = turns.slow, turns.fast
        total = len(slow) + len(fast)
        result = turns.fast_all.new_zeros(2, total, total)
        result[:, fast] = _dots(self.fast_all, turns.fast_all).view(2, len(fast), total)
        if len(slow):
            mixed = _dots(self.slow_fast, turns.slow_fast).view(2, len(slow), len(fast))
            result[:, slow[:, None], fast] = mixed
            within = _dots(self.slow_slow, turns.slow_slow).view(2, len(slow), len(slow))
            result[:, slow[:, None], slow] = within
        return turns.unpaired(result)


def _products(one: Tensor, other: Tensor) -> Tensor:  # [S, k], [S, l] -> [S, 2·k·l]
    """c conj(c′), then c c′."""
    return torch.stack(
        [one[:, :, None] * other.conj()[:, None], one[:, :, None] * other[:, None]], 1
    ).flatten(1)


def _real(x: Tensor) -> Tensor:  # [S, k] -> [S, 2·k]
    return torch.view_as_real(x).flatten(1)


def _dots(brackets: Tensor, functions: Tensor) -> Tensor:  # [T, 2·k], [T, k] -> [k]
    """Σ_t of complex products, a few keys at a time, which stay in the cache."""
    result = functions.new_zeros(functions.shape[1])
    for some, their in zip(brackets.split(32), functions.split(32), strict=True):
        result += (torch.view_as_complex(some.unflatten(1, (-1, 2))) * their).sum(0)
    return result


def _highest_slow(angles: Tensor, length: int, causal: bool) -> float:
    """The frequency up to which coordinates are treated by themselves, by operations; -1 where none are."""
    seen, width = length / 2 if causal else length, 2 * len(angles)
    best, chosen = WORTH_WHILE * seen * width**2, -1.0
    for angle in angles.unique().tolist():
        functions, slow = 2 * angle * length / math.pi + MORE_FUNCTIONS, 2 * int((angles <= angle).sum())
        cost = seen * (width**2 - slow**2) + functions * (slow**2 + seen)
        if cost < best:
            best, chosen = cost, angle
    return chosen


@lru_cache(maxsize=64)
def band(length: int, highest: float) -> Tensor:  # [length, n]
    """Orthonormal functions of t that span cos tω and sin tω for all |ω| ≤ 2·highest, to rounding.

    From the singular vectors of as many of these functions as determine the others by interpolation in ω.
    """
    count = math.ceil(0.6 * highest * length) + 40
    nodes = highest * (1 - torch.linspace(0, math.pi, count, dtype=torch.float64).cos())  # Chebyshev's
    angle = (torch.arange(length, dtype=torch.float64) - (length - 1) / 2)[:, None] * nodes
    vectors, values, _ = torch.linalg.svd(torch.cat([angle.cos(), angle.sin()], dim=1), full_matrices=False)
    return vectors[:, values > 1e-14 * values[0]]
