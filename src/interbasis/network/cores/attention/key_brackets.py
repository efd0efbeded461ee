"""Σ_t R_tᵀ X_t R_t with X_t = Σ_s Σ_hg w^hg_st q̃^h_s q̃^g_sᵀ, the k,k terms of two groups G ∋ h, G′ ∋ g of heads.

Heads of a group share their keys, so that only the sum over them is wanted. For a key, or a function of a
level of slow coordinates (`key_levels.py`) in its place, the sum over one of the two heads goes first,

    y^h_s = Σ_g w^hg_st q̃^g_s,    X_t = Σ_s Σ_h q̃^h_s y^h_sᵀ,

and what is left is one large product over queries and heads of a group: for groups of c heads c h² operations
per query and key, where pairs of heads one by one take c² h².
"""

import torch
from torch import Tensor

from interbasis.network.cores.attention.key_levels import KeyTurns, Level

MAX_FACTOR_ELEMENTS = 2**19
"""Elements of y that are multiplied at once: few enough to stay in the cache."""


class KeyBrackets:
    """Running sums over queries for two groups of heads and one block of keys."""

    def __init__(self, turns: KeyTurns, start: int, keys: int, same: bool):
        """``same``: one group with itself, whose sums are symmetric."""
        self.turns, self.start, self.keys, self.same = turns, start, keys, same
        self.upper = [self._zeros(level, level.rest) for level in turns.levels]
        self.lower = [] if same else [self._zeros(level, level.slower) for level in turns.levels]

    def _zeros(self, level: Level, others: slice) -> Tensor:  # [others, own, B or n]
        functions = self.keys if level.step is None else level.step.shape[1]
        count = len(self.turns.order)
        sizes = (2 * len(range(count)[part]) for part in (others, level.own))
        return self.turns.like.new_zeros(*sizes, functions)

    def add(self, weights: Tensor, one: Tensor, other: Tensor) -> None:
        """Add queries: w^hg_st [S, h, g, B], q̃^h [S, h, 2p′] and q̃^g [S, g, 2p′] in the order of levels."""
        for number, level in enumerate(self.turns.levels):
            if level.step is not None:
                weights = weights @ level.step[: weights.shape[-1]]  # Σ_t w_st U_t [S, h, g, n]
            own, rest, slower = (_real(part) for part in (level.own, level.rest, level.slower))
            _add_products(self.upper[number], other[..., rest], one[..., own], weights.transpose(1, 2))
            if not self.same:
                _add_products(self.lower[number], one[..., slower], other[..., own], weights)

    def turned(self) -> Tensor:  # [2, p′, p′]
        """The sums of c conj(c′) and c c′ over the block's keys, turned."""
        count = len(self.turns.order)
        result = self.turns.levels[0].turns.new_zeros(2, count, count)
        for number, level in enumerate(self.turns.levels):
            turns = level.turns[..., : self.keys]
            upper = _dots(self.upper[number], turns).mT  # c′ conj(c) and c′ c
            result[0, level.own, level.rest], result[1, level.own, level.rest] = upper[0].conj(), upper[1]
            if self.same:
                result[0, level.slower, level.own] = upper[0, :, level.last - level.first :].T
                result[1, level.slower, level.own] = upper[1, :, level.last - level.first :].T
            else:
                lower = _dots(self.lower[number], turns[:, level.last - level.first :])
                result[:, level.slower, level.own] = lower
        return result * self.turns.of_block(self.start)


def _real(complex_coordinates: slice) -> slice:
    """The two real coordinates of each complex one."""
    start, stop = complex_coordinates.start, complex_coordinates.stop
    return slice(2 * start, None if stop is None else 2 * stop)


def _add_products(total: Tensor, left: Tensor, right: Tensor, weights: Tensor) -> None:
    """Add Σ_s Σ_g left^g_s (Σ_h w^gh_s right^h_s)ᵀ, one product for all functions.

    total [i, j, n], left [S, g, i], right [S, h, j], weights [S, g, h, n].
    """
    if not total.numel():
        return
    at_once = max(1, MAX_FACTOR_ELEMENTS // (left.shape[1] * total[0].numel()))  # queries
    for i, j, w in zip(left.split(at_once), right.split(at_once), weights.split(at_once), strict=True):
        y = j.mT[:, None] @ w  # [S, g, j, n]
        total.flatten(1).addmm_(i.flatten(0, 1).T, y.flatten(0, 1).flatten(1))


def _dots(sums: Tensor, turns: Tensor) -> Tensor:  # [2i, 2j, n], [2, i, j, n] -> [2, i, j]
    """Σ_n of c conj(c′) and c c′ times their turns, from sums of products of real coordinates."""
    (xx, xy), (yx, yy) = sums.unflatten(1, (-1, 2)).unflatten(0, (-1, 2)).permute(1, 3, 0, 2, 4)
    one, other = torch.complex(xx + yy, yx - xy), torch.complex(xx - yy, yx + xy)
    return torch.stack([(one * turns[0]).sum(-1), (other * turns[1]).sum(-1)])
