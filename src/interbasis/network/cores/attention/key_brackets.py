"""Σ_t R_tᵀ X_t R_t with X_t = Σ_s Σ_hg w^hg_st q̃^h_s q̃^g_sᵀ, the k,k terms of two groups of heads, h and g.

Heads of a group share their keys, so that only the sum over them is wanted. For a key, or a function of a
level of slow coordinates (`key_levels.py`) in its place, the sum over one of the two heads goes first,

    y^h_s = Σ_g w^hg_st q̃^g_s,    X_t = Σ_s Σ_h q̃^h_s y^h_sᵀ,

and what is left is one large product over queries and the heads of one group: for groups of c heads c h²
multiplications per query and key, where pairs of heads one by one take c² h². A pair of coordinates that
belongs to a level has one of the level's own, which stands in y, so that y has few.
"""

import torch
from torch import Tensor

from interbasis.network.cores.attention.key_levels import KeyTurns, Level

MAX_FACTOR_ELEMENTS = 2**19
"""Elements of y that are multiplied at once: few enough to stay in the cache."""


class KeyBrackets:
    """Running sums over queries for two groups of heads and one block of keys."""

    def __init__(self, turns: KeyTurns, start: int, keys: int, same: bool):
        """For keys from position ``start`` on; ``same`` is one group with itself: its sums are symmetric."""
        self.turns, self.start, self.keys, self.same = turns, start, keys, same
        self.upper = [self._zeros(level, level.rest) for level in turns.levels]
        self.lower = [] if same else [self._zeros(level, level.slower) for level in turns.levels]

    def _zeros(self, level: Level, others: slice) -> Tensor:  # [others, B or n, own]
        rows, columns = (2 * len(range(len(self.turns.order))[part]) for part in (others, level.own))
        functions = self.keys if level.step is None else level.step.shape[1]
        return self.turns.like.new_zeros(rows, functions, columns)

    def add(self, weights: Tensor, one: Tensor, other: Tensor) -> None:
        """Add queries: w^hg_st [B, h, g, S], q̃^h [2p′, h, S] and q̃^g [2p′, g, S] in the order of levels."""
        for number, level in enumerate(self.turns.levels):
            if level.step is not None:  # Σ_t U_t w_st [n, h, g, S]
                weights = (level.step[: len(weights)].T @ weights.flatten(1)).unflatten(1, weights.shape[1:])
            own, rest, slower = (_real(part) for part in (level.own, level.rest, level.slower))
            _add_products(self.upper[number], other[rest], one[own], weights)
            if not self.same:
                _add_products(self.lower[number], one[slower], other[own], weights.transpose(1, 2))

    def turned(self) -> Tensor:  # [2, p′, p′]
        """The sums of c conj(c′) and c c′ over the block's keys, turned."""
        count = len(self.turns.order)
        result = self.turns.levels[0].turns.new_zeros(2, count, count)
        for number, level in enumerate(self.turns.levels):
            own = level.last - level.first
            upper = _dots(self.upper[number], level.turns).mT  # c′ conj(c) and c′ c
            result[0, level.own, level.rest], result[1, level.own, level.rest] = upper[0].conj(), upper[1]
            if self.same:
                result[:, level.slower, level.own] = upper[..., own:].mT
            else:
                result[:, level.slower, level.own] = _dots(self.lower[number], level.turns[:, own:])
        return result * self.turns.of_block(self.start)


def _real(complex_coordinates: slice) -> slice:
    """The two real coordinates of each complex one."""
    start, stop = complex_coordinates.start, complex_coordinates.stop
    return slice(2 * start, None if stop is None else 2 * stop)


def _add_products(total: Tensor, left: Tensor, right: Tensor, weights: Tensor) -> None:
    """Add Σ_s Σ_g left^g_s (Σ_h w^hg_s right^h_s)ᵀ for every function.

    total [i, n, j], left [i, g, S], right [j, h, S], weights [n, h, g, S].
    """
    if not total.numel():
        return
    (_, heads, others, queries), columns = weights.shape, len(right)
    right = right[:, :, None].expand(-1, -1, others, -1).contiguous()  # [j, h, g, S]
    functions = max(1, MAX_FACTOR_ELEMENTS // (columns * others * queries))
    for some, sums in zip(weights.split(functions), total.split(functions, 1), strict=True):
        y = some[:, None, 0] * right[:, 0]  # [n, j, g, S]
        for head in range(1, heads):
            y.addcmul_(some[:, None, head], right[:, head])
        sums.flatten(1).addmm_(left.flatten(1), y.flatten(2).flatten(0, 1).T)


def _dots(sums: Tensor, turns: Tensor) -> Tensor:  # [2i, n, 2j], [2, i, j, n or more] -> [2, i, j]
    """Σ_n of c conj(c′) and c c′ times their turns, from sums of products of real coordinates."""
    (xx, xy), (yx, yy) = sums.unflatten(2, (-1, 2)).unflatten(0, (-1, 2)).permute(1, 4, 0, 3, 2)
    one, other = torch.complex(xx + yy, yx - xy), torch.complex(xx - yy, yx + xy)
    turns = turns[..., : sums.shape[1]]
    return torch.stack([(one * turns[0]).sum(-1), (other * turns[1]).sum(-1)])
