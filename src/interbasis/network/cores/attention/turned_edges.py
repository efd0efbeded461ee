"""Attributions through attention with rotary positions, at about the cost of those without.

R_t turns coordinates by an angle that grows with the position t, q̃_s = R_s q_s and k̃_t = R_t k_t. What a key's
coordinates do to a score depends on both positions, q̃_sᵀR_t W_K c_j, so that the order of the sums differs from
that of `edges.py`.
"""

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import Heads
from interbasis.network.cores.attention.rotary import Rotary

MAX_ELEMENTS = 2**19
"""Elements of a product that is used at once: few enough to stay in the cache."""
POSITIONS_PER_BLOCK = 128
"""Positions handled at once: fewer skip more of what causal attention does not see, and multiply slower."""


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
    weights: Tensor,
    z: Tensor,
    f: tuple[Tensor, Tensor],
    read: tuple[Tensor, Tensor],
) -> None:
    """Add the sum over the queries, with signs, of what the turned coordinates of queries and keys move.

    x is one head and one sample, weights σ φ_s b_st [S, T], z [S, h], f_js [S, r] and f_jt [T, r], read W_Q c_j
    and W_K c_j [h, r]; result [h, r] grows by

        Σ_t X_t W_K c_j f_jt + Σ_s Y_s W_Q c_j f_js,
        X_t = (Σ_s σ φ_s b_st (v_t − z_s) q̃_sᵀ) R_t,    Y_s = (Σ_t σ φ_s b_st (v_t − z_s) k̃_tᵀ) R_s.

    Each is a product [h², T] × [T, r], and nothing of size [queries, h, r] is made: per token about
    2 T h² + 2 r h² multiplications, of which causality saves half of the first.
    """
    rotary, size = x.shape.rotary, x.shape.turned
    assert rotary is not None
    k, q = (part[0, 0, :, :size].T.contiguous() for part in (x.k, x.turned_q))  # [2p, T], [2p, S]
    v, z = x.v[0, 0].T.contiguous(), z.T.contiguous()  # [h, T], [h, S]
    by_key = _over_queries(z, q, weights, x).addcmul_(v[:, None], q @ weights, value=-1)  # −X_t, not turned
    _add_bracket(result, _turned_back(by_key, rotary, x.keys), f[1], -read[1][:size])
    by_query = _over_keys(v, k, weights, x).addcmul_(z[:, None], k @ weights.T, value=-1)
    _add_bracket(result, _turned_back(by_query, rotary, x.positions[0]), f[0], read[0][:size])


def _over_queries(z: Tensor, q: Tensor, weights: Tensor, x: Heads) -> Tensor:
    """Σ_s w_st z_s q_sᵀ: z [h, S], q [k, S], weights [S, T] -> [h, k, T]."""
    pairs = (z[:, None] * q).flatten(0, 1)
    result = z.new_empty(len(pairs), weights.shape[1])
    for start in range(0, weights.shape[1], POSITIONS_PER_BLOCK):
        keys = slice(start, start + POSITIONS_PER_BLOCK)
        queries = x.queries_that_see(keys)
        torch.mm(pairs[:, queries], weights[queries, keys], out=result[:, keys])
    return result.view(len(z), len(q), -1)


def _over_keys(v: Tensor, k: Tensor, weights: Tensor, x: Heads) -> Tensor:
    """Σ_t w_st v_t k_tᵀ: v [h, T], k [k, T], weights [S, T] -> [h, k, S]."""
    pairs = (v[:, None] * k).flatten(0, 1)
    result = v.new_empty(len(pairs), len(weights))
    for start in range(0, len(weights), POSITIONS_PER_BLOCK):
        queries = slice(start, start + POSITIONS_PER_BLOCK)
        keys = x.keys_seen_by(queries)
        torch.mm(pairs[:, keys], weights[queries, keys].T, out=result[:, queries])
    return result.view(len(v), len(k), -1)


def _add_bracket(result: Tensor, brackets: Tensor, f: Tensor, columns: Tensor) -> None:
    """Add Σ_t X_t c_j f_jt: brackets X_t [h, k, T], f [T, r], columns c_j [k, r]; result [h, r]."""
    rows = max(1, MAX_ELEMENTS // columns.numel())
    for start in range(0, len(result), rows):
        some = brackets[start : start + rows]
        product = (some.flatten(0, 1) @ f).view(len(some), *columns.shape)
        result[start : start + rows] += product.mul_(columns).sum(1)


def _turned_back(brackets: Tensor, rotary: Rotary, positions: Tensor) -> Tensor:
    """X_t R_t for brackets X_t [h, 2p, T]."""
    cos, sin = (wave.T.contiguous() for wave in rotary.waves(positions, brackets))  # [p, T]
    first, second = brackets.chunk(2, dim=1)
    result = torch.empty_like(brackets)
    one, other = result.chunk(2, dim=1)
    torch.mul(first, cos, out=one).addcmul_(second, sin)
    torch.mul(second, cos, out=other).addcmul_(first, sin, value=-1)
    return result
