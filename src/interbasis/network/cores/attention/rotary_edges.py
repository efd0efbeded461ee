"""Attributions through attention with rotary positions.

R_t turns coordinates by angles that grow with the position t; q̃_s = R_s q_s and k̃_t = R_t k_t. The effect of
a feature on a score through a key depends on both positions, q̃_sᵀR_t W_K c_j, so sums over queries go in
another order than in `edges.py`. Two orders serve signed sums over queries s, with w_st = σ b_st:

- `ManyQueries`: slow coordinates as without rotary positions, once per function of `slow_turns.py`; p fast
  pairs by a bracket [h, 2p] per key and per query, about 2 p h (T + r) multiplications each.
- `FewQueries`: brackets for the queries alone, and sums over keys by functions for all coordinates, N T r per
  query.
"""

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import CausalBlocks, FeatureColumns, Heads
from interbasis.network.cores.attention.slow_turns import SlowTurns, fast_pairs

MAX_PRODUCT_ELEMENTS = 2**19
"""Elements of a product that is used at once: few enough to stay in the cache."""


def moved_by_keys(x: Heads, weighted: Tensor, f: Tensor, columns: Tensor) -> Tensor:
    """Compute Σ_t b_st (v_t − z_s)_i f_jt (R_tᵀq̃_s)ᵀ W_K c_j for every query of one head.

    weighted b_st (v_t − z_s)_i [n, S, h, T], f [n, T, r], columns W_K c_j [h, r] -> [n, S, h, r]. Twice the
    multiplications that are needed without rotary positions: one product makes the factor of
    b_st (v_t − z_s)_i, the other sums over the keys.
    """
    assert x.shape.rotary is not None
    n, queries, _, keys = weighted.shape
    result = f.new_zeros(n, queries, columns.shape[0], f.shape[2])
    key_step = max(1, min(keys, MAX_PRODUCT_ELEMENTS // f.shape[2]))
    query_step = max(1, MAX_PRODUCT_ELEMENTS // (n * key_step * f.shape[2]))
    for start in range(0, queries, query_step):
        rows = slice(start, start + query_step)
        for first in range(0, keys, key_step):
            at = slice(first, first + key_step)
            turned = x.turned_q[0][:, rows, None].expand(-1, -1, len(x.keys[at]), -1)
            turned = x.shape.rotary.turn(turned, x.keys[at], back=True)  # R_tᵀq̃_s [n, S, T, h]
            product = (turned @ columns).mul_(f[:, None, at])
            result[:, rows] += weighted[:, rows, :, at] @ product
    return result


def turned_queries(x: Heads) -> "type[TurnedQueries]":
    """The order of sums over the queries of x that takes fewer multiplications.

    `FewQueries` takes N T r per query with N ≤ h + 1, brackets for all keys h² T r however few queries there
    are.
    """
    return FewQueries if x.positions.shape[1] <= x.shape.width else ManyQueries


class TurnedQueries(ABC):
    """Signed sums over queries of one head and one sample."""

    def __init__(self, x: Heads, weights: Tensor, z: Tensor, columns: FeatureColumns):
        """Take weights w_st [S, T] and z [S, h]."""
        assert x.shape.rotary is not None
        self.rotary, self.x, self.weights, self.z, self.columns = x.shape.rotary, x, weights, z, columns
        self.blocks = CausalBlocks(x, weights)
        self.q, self.k, self.v = x.turned_q[0, 0], x.k[0, 0], x.v[0, 0]

    @abstractmethod
    def add(self, result: Tensor, sign: Tensor) -> None:
        """Add the changes through queries and keys, with signs φ_s [S], to result [h, r]."""


class ManyQueries(TurnedQueries):
    """Slow coordinates by functions of the position, fast ones in brackets."""

    @cached_property
    def turns(self) -> SlowTurns:
        return SlowTurns.from_heads(self.x, fast_pairs(self.x, self.columns.at_keys.shape[1]))

    def add(self, result: Tensor, sign: Tensor) -> None:
        if len(self.turns.slow):
            result += self.v.T @ self._by_key(sign) - (sign[:, None] * self.z).T @ self._by_query
        if len(self.turns.fast):
            self._add_brackets(result, sign[:, None] * self.weights)

    @cached_property
    def _by_query(self) -> Tensor:  # [S, r]
        """Factors of −z_s without signs, Σ_t w_st f_jt q̃_sᵀR_tW_K c_j + f_js (w k̃)_sᵀR_sW_Q c_j."""
        x, columns, slow = self.x, self.columns, self.turns.slow
        pushed = self.rotary.turn(self.blocks.over_keys(self.k), x.positions[0], back=True)
        total = columns.at_queries * (pushed[:, slow] @ columns.read_q[slow])
        return total.add_(
            self.turns.sums(self.q, columns.read_k, self.weights, columns.at_keys, x.keys, x.keys_seen_by)
        )

    def _by_key(self, sign: Tensor) -> Tensor:  # [S] -> [T, r]
        """Factors of v_t, Σ_s φ_s w_st f_js k̃_tᵀR_sW_Q c_j + f_jt (wᵀφq̃)_tᵀR_tW_K c_j."""
        x, columns, slow = self.x, self.columns, self.turns.slow
        pulled = self.rotary.turn(self.blocks.over_queries(self.q, sign), x.keys, back=True)
        total = columns.at_keys * (pulled[:, slow] @ columns.read_k[slow])
        weights, at_queries = self.weights.T, sign[:, None] * columns.at_queries
        return total.add_(
            self.turns.sums(self.k, columns.read_q, weights, at_queries, x.positions[0], x.queries_that_see)
        )

    def _add_brackets(self, result: Tensor, weights: Tensor) -> None:
        """Add the sum over all queries of the changes through fast coordinates.

        For weights φ_s w_st [S, T], result [h, r] grows by

            Σ_t X_t W_K c_j f_jt + Σ_s Y_s W_Q c_j f_js,
            X_t = (Σ_s φ_s w_st (v_t − z_s) q̃_sᵀ) R_t,    Y_s = (Σ_t φ_s w_st (v_t − z_s) k̃_tᵀ) R_s.

        Each is a product [h·2p, T] × [T, r] for p pairs of coordinates, and nothing of size [queries, h, r]
        is made; causality saves half of the products with w.
        """
        x, columns, fast, v = self.x, self.columns, self.turns.fast, self.v
        at_queries, at_keys = columns.at_queries.T.contiguous(), columns.at_keys.T.contiguous()
        read_q, read_k = columns.read_q[fast].T.contiguous(), columns.read_k[fast].T.contiguous()
        k, q = self.k[:, fast], self.q[:, fast]
        pulled, pushed = weights.T @ q, weights @ k  # Σ_s w_st q̃_s [T, 2p], Σ_t w_st k̃_t [S, 2p]
        query_waves, key_waves = (
            torch.complex(cos, -sin)[:, None, fast[::2]]
            for cos, sin in (self.rotary.waves(positions, v) for positions in (x.positions[0], x.keys))
        )
        blocks = CausalBlocks(x, weights)
        rows = max(1, MAX_PRODUCT_ELEMENTS // (len(fast) * max(len(v), len(at_queries))))
        for start in range(0, len(result), rows):
            part = slice(start, start + rows)
            values, mixed = v[:, part, None], self.z[:, part, None]
            by_key = blocks.over_queries(mixed * q[:, None])
            by_key.addcmul_(values, pulled[:, None], value=-1)  # −X_t
            _turn_back(by_key, key_waves)
            result[part] -= _contract(by_key, at_keys, read_k)
            by_query = blocks.over_keys(values * k[:, None])
            by_query.addcmul_(mixed, pushed[:, None], value=-1)  # Y_s
            _turn_back(by_query, query_waves)
            result[part] += _contract(by_query, at_queries, read_q)


def _turn_back(x: Tensor, waves: Tensor) -> None:
    """Replace x_t by x_t R_t; x [T, h, 2p], the coordinates of a pair side by side."""
    torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(waves)


def _contract(brackets: Tensor, f: Tensor, columns: Tensor) -> Tensor:
    """Compute Σ_t X_t c_j f_jt from brackets X_t [T, h, k], f [r, T] and columns c_j [r, k], [h, r]."""
    product = (f @ brackets.flatten(1)).unflatten(1, brackets.shape[1:])  # [r, h, k]
    return product.mul_(columns[:, None]).sum(-1).T  # a batched product with one column is slower


class FewQueries(TurnedQueries):
    """Brackets for the queries, functions of the position for all coordinates of the keys."""

    def add(self, result: Tensor, sign: Tensor) -> None:
        """Add

        Σ_t v_t f_jt (wᵀφq̃)_tᵀR_tW_K c_j − Σ_s φ_s z_s (`by_query`)_sj + Σ_s φ_s f_js Y_s W_Q c_j.
        """
        columns = self.columns
        pulled = self.rotary.turn(self.blocks.over_queries(self.q, sign), self.x.keys, back=True)
        result += self.v.T @ (columns.at_keys * (pulled @ columns.read_k))
        result -= (sign[:, None] * self.z).T @ self.by_query
        at_queries = (columns.at_queries * sign[:, None])[:, None]
        for rows in self._value_coordinates():
            moved = self.brackets[:, rows].flatten(0, 1) @ columns.read_q
            result[rows] += moved.view(len(at_queries), -1, moved.shape[1]).mul_(at_queries).sum(0)

    @cached_property
    def by_query(self) -> Tensor:  # [S, r]
        """Σ_t w_st f_jt q̃_sᵀR_tW_K c_j = Σ_m q̃_sᵀD_mW_K c_j (w U_m f)_sj."""
        x, columns = self.x, self.columns
        turns = SlowTurns.from_heads(x, fast=0)
        return turns.sums(self.q, columns.read_k, self.weights, columns.at_keys, x.keys, x.keys_seen_by)

    @cached_property
    def brackets(self) -> Tensor:  # [S, h, h]
        """Y_s = (Σ_t w_st (v_t − z_s) k̃_tᵀ) R_s."""
        result = self.z.new_empty(*self.z.shape, self.k.shape[1])
        for rows in self._value_coordinates():
            deviations = self.v.T[rows] - self.z[:, rows, None]  # (v_t − z_s)_i [S, rows, T]
            products = deviations.mul_(self.weights[:, None]).flatten(0, 1) @ self.k
            result[:, rows] = products.unflatten(0, deviations.shape[:2])
        return self.rotary.turn(result, self.x.positions[0, :, None], back=True)

    def _value_coordinates(self) -> list[slice]:
        """Coordinates of the values in runs that stay in the cache."""
        width = self.v.shape[1]
        step = max(1, MAX_PRODUCT_ELEMENTS // (len(self.q) * max(len(self.v), self.columns.at_keys.shape[1])))
        return [slice(start, min(start + step, width)) for start in range(0, width, step)]
