"""Attributions through attention with rotary positions, summed with signs over few queries.

What the keys move is summed in the order of attention without rotary positions (`edges.py`), once per
function of the position that turns are combinations of (`slow_turns`), all coordinates alike: N T r per query
for N functions and r features. Brackets X_t [h, h] for every key (`turned_edges`) take T h² r, however few
queries there are.
"""

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from interbasis.network.cores.attention.causal_blocks import CausalBlocks, Columns
from interbasis.network.cores.attention.function_sums import Sides, add_by_functions
from interbasis.network.cores.attention.heads import AttentionShape, Heads
from interbasis.network.cores.attention.slow_turns import ELEMENTWISE, SlowTurns, count_all
from interbasis.network.cores.attention.turned_edges import MAX_ELEMENTS


def are_few(x: Heads, features: int) -> bool:
    """Whether the queries of x are few enough for these sums."""
    keys = x.k.shape[2]
    return save_operations(x.shape, x.positions.shape[1], (x.first + keys, keys), features, x.v.dtype)


def save_operations(
    shape: AttentionShape, queries: int, positions: tuple[int, int], features: int, dtype: torch.dtype
) -> bool:
    """Whether so many queries are few; positions up to an end, and how many are keys."""
    if shape.rotary is None:
        return False
    (end, keys), width = positions, shape.width
    seen = keys * (0.6 if shape.causal else 1.0)
    functions = count_all(shape, end, dtype)
    here = queries * functions * features * (seen + width + ELEMENTWISE / 2) + 2 * keys * width * features
    return here < width**2 * (queries * seen + keys * features)


class FewQueries:
    """The sums of one head and one sample over its queries."""

    def __init__(self, x: Heads, turns: SlowTurns, weights: Tensor, z: Tensor, columns: Columns):
        """For turns of all coordinates, weights σ b_st [S, T] and z [S, h]."""
        assert x.shape.rotary is not None
        self.rotary, self.turns = x.shape.rotary, turns
        self.x, self.weights, self.z, self.columns = x, weights, z, columns
        self.blocks = CausalBlocks(x, weights)
        self.q, self.k, self.v = x.turned_q[0, 0], x.k[0, 0], x.v[0, 0]

    def add(self, result: Tensor, sign: Tensor) -> None:
        """Add what queries and keys move, with signs φ_s [S], to result [h, r]:

        Σ_t v_t f_jt (wᵀφq̃)_tᵀR_tW_K c_j − Σ_s φ_s z_s (`by_query`)_sj + Σ_s φ_s f_js Y_s W_Q c_j.
        """
        columns = self.columns
        pulled = self.rotary.turn(self.blocks.over_queries(self.q, sign), self.x.keys, back=True)
        result += self.v.T @ (columns.seen * (pulled @ columns.read_k))
        result -= (sign[:, None] * self.z).T @ self.by_query
        own = (columns.own * sign[:, None])[:, None]
        for rows in self._rows():
            moved = self.brackets[:, rows].flatten(0, 1) @ columns.read_q
            result[rows] += moved.view(len(own), -1, moved.shape[1]).mul_(own).sum(0)

    @cached_property
    def by_query(self) -> Tensor:  # [S, r]
        """Σ_t w_st f_jt q̃_sᵀR_tW_K c_j = Σ_m q̃_sᵀD_mW_K c_j (w U_m f)_sj."""
        turns = self.turns
        result = self.columns.seen.new_zeros(len(self.q), self.columns.seen.shape[1])
        functions, read_k = turns.functions[self.x.keys], self.columns.read_k[turns.slow]
        sides = Sides(self.q[:, turns.slow], self.columns.seen, self.weights, self.x.keys_seen_by)
        add_by_functions(result, sides, functions, turns.turns, read_k)
        return result

    @cached_property
    def brackets(self) -> Tensor:  # [S, h, h]
        """Y_s = (Σ_t w_st (v_t − z_s) k̃_tᵀ) R_s."""
        result = self.z.new_empty(*self.z.shape, self.k.shape[1])
        for rows in self._rows():
            deviations = self.v.T[rows] - self.z[:, rows, None]  # (v_t − z_s)_i [S, rows, T]
            products = deviations.mul_(self.weights[:, None]).flatten(0, 1) @ self.k
            result[:, rows] = products.unflatten(0, deviations.shape[:2])
        return self.rotary.turn(result, self.x.positions[0, :, None], back=True)

    def _rows(self) -> Iterator[slice]:
        """Coordinates of the values, as many at once as stay in the cache."""
        width = self.v.shape[1]
        most = MAX_ELEMENTS // (len(self.q) * max(len(self.v), self.columns.seen.shape[1]))
        for start in range(0, width, max(1, most)):
            yield slice(start, min(start + max(1, most), width))
