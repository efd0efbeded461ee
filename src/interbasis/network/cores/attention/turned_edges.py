"""Attributions through attention with rotary positions, at about the cost of those without.

R_t turns coordinates by angles that grow with the position t; q̃_s = R_s q_s and k̃_t = R_t k_t. What a feature
does to a score through a key depends on both positions, q̃_sᵀR_t W_K c_j, so the order of the sums differs
from that of `edges.py`.
"""

import torch
from torch import Tensor

from interbasis.network.cores.attention.causal_blocks import CausalBlocks, Columns
from interbasis.network.cores.attention.heads import Heads
from interbasis.network.cores.attention.slow_turns import SlowTurns

MAX_ELEMENTS = 2**19
"""Elements of a product that is used at once: few enough to stay in the cache."""


def moved_by_keys(x: Heads, weighted: Tensor, f: Tensor, columns: Tensor) -> Tensor:
    """Σ_t b_st (v_t − z_s)_i f_jt (R_tᵀq̃_s)ᵀ W_K c_j for every query; x is one head.

    weighted b_st (v_t − z_s)_i [n, S, h, T], f [n, T, r], columns W_K c_j [h, r] -> [n, S, h, r]. Twice the
    multiplications that are needed without rotary positions: one product makes what stands beside
    b_st (v_t − z_s)_i, the other sums over the keys.
    """
    assert x.shape.rotary is not None
    turned = x.turned_q[0]
    n, queries, _, keys = weighted.shape
    result = f.new_zeros(n, queries, columns.shape[0], f.shape[2])
    some = max(1, min(keys, MAX_ELEMENTS // f.shape[2]))  # keys
    many = max(1, MAX_ELEMENTS // (n * some * f.shape[2]))  # queries
    for start in range(0, queries, many):
        of = slice(start, start + many)
        for first in range(0, keys, some):
            at = slice(first, first + some)
            asked = turned[:, of, None].expand(-1, -1, len(x.keys[at]), -1)
            asked = x.shape.rotary.turn(asked, x.keys[at], back=True)  # R_tᵀq̃_s [n, S, T, h]
            product = (asked @ columns).mul_(f[:, None, at])
            result[:, of] += weighted[:, of, :, at] @ product
    return result


def add_signed(
    result: Tensor,
    x: Heads,
    turns: SlowTurns,
    weights: Tensor,
    z: Tensor,
    columns: Columns,
) -> None:
    """Add the sum over the queries, with signs, of what the fast coordinates of queries and keys move.

    x is one head and one sample, weights σ φ_s b_st [S, T], z [S, h]; result [h, r] grows by

        Σ_t X_t W_K c_j f_jt + Σ_s Y_s W_Q c_j f_js,
        X_t = (Σ_s σ φ_s b_st (v_t − z_s) q̃_sᵀ) R_t,    Y_s = (Σ_t σ φ_s b_st (v_t − z_s) k̃_tᵀ) R_s.

    Each is a product [h·2p, T] × [T, r] for p fast pairs, and nothing of size [queries, h, r] is made: per
    token about 4 T h p + 4 r h p multiplications, of which causality saves half of the first.
    """
    fast = turns.fast
    own, seen = columns.own.T.contiguous(), columns.seen.T.contiguous()
    read_q, read_k = columns.read_q[fast].T.contiguous(), columns.read_k[fast].T.contiguous()
    k, q, v = x.k[0, 0][:, fast], x.turned_q[0, 0][:, fast], x.v[0, 0]
    pulled, pushed = weights.T @ q, weights @ k  # Σ_s w_st q̃_s [T, 2p], Σ_t w_st k̃_t [S, 2p]
    query_waves, key_waves = (turns.waves[positions][:, None] for positions in (x.positions[0], x.keys))
    blocks = CausalBlocks(x, weights)
    rows = max(1, MAX_ELEMENTS // (len(fast) * max(len(v), len(own))))
    for some in range(0, len(result), rows):
        values, mixed = v[:, some : some + rows, None], z[:, some : some + rows, None]
        by_key = blocks.over_queries(mixed * q[:, None]).addcmul_(values, pulled[:, None], value=-1)  # −X_t
        _turn_back(by_key, key_waves)
        result[some : some + rows] -= _contracted(by_key, seen, read_k)
        by_query = blocks.over_keys(values * k[:, None]).addcmul_(mixed, pushed[:, None], value=-1)  # Y_s
        _turn_back(by_query, query_waves)
        result[some : some + rows] += _contracted(by_query, own, read_q)


def _turn_back(x: Tensor, waves: Tensor) -> None:
    """x_t R_t in place; x [T, h, 2p], the coordinates of a pair side by side."""
    torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(waves)


def _contracted(brackets: Tensor, f: Tensor, columns: Tensor) -> Tensor:
    """Σ_t X_t c_j f_jt: brackets X_t [T, h, k], f [r, T], columns c_j [r, k] -> [h, r]."""
    product = (f @ brackets.flatten(1)).unflatten(1, brackets.shape[1:])  # [r, h, k]
    return product.mul_(columns[:, None]).sum(-1).T  # a batched product with one column is slower
