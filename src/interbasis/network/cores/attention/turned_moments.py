"""The key terms of Σ_st N_stᵀQN_st where rotary positions turn queries and keys.

A key sees R_tᵀq̃_s, which depends on both positions. With bb = b^h ∘ b^g, ab = a^h ∘ b^g and
w_st = bb_st (v^h_t − z^h_s)ᵀ Q (v^g_t − z^g_s) the two terms of a pair of heads are

    k,k  Σ_t R_tᵀ (Σ_s w_st q̃^h_s q̃^g_sᵀ) R_t                                     at most T h² per query
    v,k  Σ_t v^g_t (R_tᵀ Σ_s ab_st q̃^g_s)ᵀ − Σ_s z^g_s (Σ_t ab_st R_tᵀq̃^g_s)ᵀ      T h per query:

R_tᵀq̃_s is linear in cos tθ_e and sin tθ_e, so that the last sum over keys needs ab·cos and ab·sin alone. They
serve both orders of a pair where scores are not capped. Brackets of k,k (`key_brackets.py`) are summed over
samples and blocks of queries before they are turned.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import Heads
from interbasis.network.cores.attention.key_brackets import KeyBrackets, KeyTurns
from interbasis.network.cores.attention.sums import HeadSums


@dataclass(frozen=True, eq=False)
class _Block:
    """Some of the queries: their patterns, and where the keys that they see begin and end."""

    x: Heads
    a: Tensor  # [H, n, S, T], 0 for pairs that do not count
    b: Tensor
    z: Tensor  # [H, n, S, h]

    @classmethod
    def of(cls, x: Heads) -> "_Block":
        a, b = x.pattern()
        z, (pairs, _) = a @ x.v, x.counted_pairs()
        if pairs is not None:
            a, b = (a * pairs,) * 2 if a is b else (a * pairs, b * pairs)
        return cls(x, a, b, z)


def add_key_terms(sums: HeadSums, x: Heads, metric: Tensor, queries: int) -> None:
    """Add k,k for pairs h ≤ g and v,k for all pairs, by blocks of so many queries."""
    heads, width, count = x.shape.heads, x.shape.width, x.positions.shape[1]
    Q = metric.unflatten(0, (heads, width)).unflatten(2, (heads, width))  # [h, i, g, j]
    blocks = [_Block.of(x.queries(start, start + queries)) for start in range(0, count, queries)]
    turns = KeyTurns(x)
    for h in range(heads):
        for g in range(h, heads):
            brackets = KeyBrackets(turns)
            for block in blocks:
                bb = block.b[h] * block.b[g]
                weights = (_deviations(block, h, g, Q[h, :, g]) * bb).flatten(0, 1)  # w_st [n·S, T]
                queries_of = (block.x.turned_q[head].flatten(0, 1) for head in (h, g))
                brackets.add(block.x.first - x.first, weights, *queries_of)
                _add_value_terms(sums, block, h, g, bb)
            # the transpose of a head with itself is the other half
            sums.kk[h, g] += brackets.turned_sum() * (0.5 if h == g else 1.0)


def _deviations(block: _Block, h: int, g: int, Q: Tensor) -> Tensor:
    """(v^h_t − z^h_s)ᵀ Q (v^g_t − z^g_s), [n, S, T]: one product of all four terms."""
    v, z = block.x.v, block.z
    spread, seen = v[h] @ Q, z[h] @ Q  # v^hᵀQ [n, T, h], z^hᵀQ [n, S, h]
    by_key, by_query = (spread * v[g]).sum(-1, keepdim=True), (seen * z[g]).sum(-1, keepdim=True)
    left = torch.cat([z[g], seen, by_query, torch.ones_like(by_query)], dim=-1)
    right = torch.cat([-spread, -v[g], torch.ones_like(by_key), by_key], dim=-1)
    return left @ right.mT


def _add_value_terms(sums: HeadSums, block: _Block, h: int, g: int, bb: Tensor) -> None:
    """v,k of both orders of a pair."""
    if block.a is block.b:
        _add_value_term(sums, block, bb, [(h, g), (g, h)] if h < g else [(h, g)])
        return
    _add_value_term(sums, block, block.a[h] * block.b[g], [(h, g)])
    if h < g:
        _add_value_term(sums, block, block.a[g] * block.b[h], [(g, h)])


def _add_value_term(sums: HeadSums, block: _Block, ab: Tensor, pairs: list[tuple[int, int]]) -> None:
    """v,k of pairs that have the same ab [n, S, T]."""
    x, rotary = block.x, block.x.shape.rotary
    assert rotary is not None
    cos, sin = rotary.waves(x.keys, ab)  # [T, p]
    mixed = ab @ torch.cat([cos, sin, torch.ones_like(cos[:, :1])], dim=1)  # Σ_t ab_st [cos, sin, 1]
    cos, sin, rows = mixed.split([cos.shape[1], cos.shape[1], 1], dim=-1)
    pulled = ab.mT @ torch.cat([x.turned_q[g] for _, g in pairs], dim=-1)  # Σ_s ab_st q̃^g_s [n, T, ·]
    for (h, g), by_key in zip(pairs, pulled.split(x.shape.width, dim=-1), strict=True):
        turned = rotary.turn(by_key, x.keys, back=True)
        first, second, rest = x.turned_q[g].tensor_split([cos.shape[2], 2 * cos.shape[2]], dim=-1)
        by_query = torch.cat([first * cos + second * sin, second * cos - first * sin, rest * rows], dim=-1)
        sums.vk[h, g] += x.v[g].flatten(0, 1).T @ turned.flatten(0, 1)
        sums.vk[h, g] -= block.z[g].flatten(0, 1).T @ by_query.flatten(0, 1)
