"""Σ_t R_tᵀ X_t R_t with X_t = Σ_s w_st q̃^h_s q̃^g_sᵀ, the k,k terms of a pair of heads with rotary positions.

Turning multiplies an entry ee′ of X_t by cosines and sines of t(θ_e ± θ_e′). Most frequencies of a head are
low, and over T positions the functions of t with frequencies up to 2θ are, to rounding, combinations of about
2θT/π + 25 of them (Slepian 1978), U [T, n]. So for pairs of slow coordinates X_t is not summed for every key:
UᵀX is, [n, h²], and U Uᵀ X in place of X gives the same sum.
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


class KeyBrackets:
    """Running sums over queries of one pair of heads."""

    def __init__(self, x: Heads):
        rotary, width, keys = x.shape.rotary, x.shape.width, x.k.shape[2]
        assert rotary is not None
        self.rotary, self.turned = rotary, x.shape.turned
        self.length = -(-keys // KEYS_AT_ONCE) * KEYS_AT_ONCE if keys > KEYS_AT_ONCE else keys
        self.positions = torch.arange(x.first, x.first + self.length, device=x.v.device)
        angles = torch.tensor(rotary.frequencies, dtype=torch.float64)
        angles = torch.cat([angles, angles, angles.new_zeros(width - self.turned)]).abs()
        highest = _highest_slow(angles, self.length, x.shape.causal)
        is_slow = angles <= highest
        self.slow, self.fast = (some.nonzero()[:, 0].to(x.v.device) for some in (is_slow, ~is_slow))
        slow, fast = len(self.slow), len(self.fast)
        self.functions = x.v.new_zeros(self.length, 0)
        if slow:
            self.functions = band(self.length, highest).to(x.v)  # U [T, n]
        self.fast_all = x.v.new_zeros(self.length, fast * width)
        self.slow_fast = x.v.new_zeros(self.length, slow * fast)
        self.slow_slow = x.v.new_zeros(self.functions.shape[1], slow**2)

    def add(self, first: int, weights: Tensor, one: Tensor, other: Tensor) -> None:
        """Add queries: weights w_st [S, T] of the keys from ``first`` on, q̃^h and q̃^g [S, h]."""
        keys = slice(first, first + weights.shape[1])
        self.fast_all[keys].addmm_(weights.T, _pairs(one[:, self.fast], other))
        if len(self.slow):
            slow = one[:, self.slow]
            self.slow_fast[keys].addmm_(weights.T, _pairs(slow, other[:, self.fast]))
            few = weights @ self.functions[keys]  # Σ_t w_st U_t [S, n]
            self.slow_slow.addmm_(few.T, _pairs(slow, other[:, self.slow]))

    def turned_sum(self) -> Tensor:  # [h, h]
        """Σ_t R_tᵀ X_t R_t."""
        slow, fast = self.slow, self.fast
        width = len(slow) + len(fast)
        brackets = self.fast_all.new_empty(self.length, width, width)
        brackets[:, fast] = self.fast_all.view(self.length, len(fast), width)
        if len(slow):
            brackets[:, slow[:, None], fast] = self.slow_fast.view(self.length, len(slow), len(fast))
            rest = self.functions @ self.slow_slow
            brackets[:, slow[:, None], slow] = rest.view(self.length, len(slow), len(slow))
        cos, sin = self.rotary.waves(self.positions, brackets)  # [T, p]
        first, second = brackets[..., : self.turned].chunk(2, dim=-1)
        moved = first * sin[:, None]
        first.mul_(cos[:, None]).addcmul_(second, sin[:, None])  # X_t R_t
        second.mul_(cos[:, None]).sub_(moved)
        waves = torch.stack([cos.T, sin.T], dim=1)  # [p, 2, T]
        halves = brackets[:, : self.turned].chunk(2, dim=1)
        upper, lower = (waves @ half.transpose(0, 1) for half in halves)  # [p, 2, h]
        below = brackets[:, self.turned :].sum(0)
        return torch.cat([upper[:, 0] + lower[:, 1], lower[:, 0] - upper[:, 1], below])


def _pairs(one: Tensor, other: Tensor) -> Tensor:  # [S, k], [S, l] -> [S, k·l]
    return (one[:, :, None] * other[:, None]).flatten(1)


def _highest_slow(angles: Tensor, length: int, causal: bool) -> float:
    """The frequency up to which coordinates are treated by themselves, by operations; -1 where none are."""
    seen, width = length / 2 if causal else length, len(angles)
    best, chosen = WORTH_WHILE * seen * width**2, -1.0
    for angle in angles.unique().tolist():
        functions, slow = 2 * angle * length / math.pi + MORE_FUNCTIONS, int((angles <= angle).sum())
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
