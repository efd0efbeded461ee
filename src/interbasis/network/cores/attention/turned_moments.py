"""The key terms of Σ_st N_stᵀQN_st where rotary positions turn queries and keys.

A key sees R_tᵀq̃_s, which depends on both positions. With bb = b^h ∘ b^g, ab = a^h ∘ b^g and
w_st = bb_st (v_t − z^h_s)ᵀ Q (v′_t − z^g_s) the two terms of heads h and g of the groups G and G′ are

    k,k  Σ_t R_tᵀ (Σ_s w_st q̃^h_s q̃^g_sᵀ) R_t                                     at most T h² per query
    v,k  Σ_t v′_t (R_tᵀ Σ_s ab_st q̃^g_s)ᵀ − Σ_s z^g_s (Σ_t ab_st R_tᵀq̃^g_s)ᵀ       T h per query:

R_tᵀq̃_s is linear in cos tθ_e and sin tθ_e, so that the last sum over keys needs ab·cos and ab·sin alone.
Heads of a group share keys, and k,k is wanted for pairs of groups alone (`key_brackets.py`). What depends on
the key is summed over blocks of queries, and in k,k over samples, before it is turned.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.network.cores.attention import key_levels
from interbasis.network.cores.attention.heads import Heads
from interbasis.network.cores.attention.key_brackets import KeyBrackets
from interbasis.network.cores.attention.key_levels import KeyTurns
from interbasis.network.cores.attention.sums import HeadSums


@dataclass(frozen=True, eq=False)
class _Block:
    """Some of the queries: their patterns, and where the keys that they see begin and end."""

    x: Heads
    a: Tensor  # [H, n, T, S], 0 for pairs that do not count
    b: Tensor
    z: Tensor  # [H, n, S, h]

    @classmethod
    def of(cls, x: Heads) -> "_Block":
        a, b = x.pattern()
        z, (pairs, _) = a @ x.v, x.counted_pairs()
        if pairs is not None:
            a, b = (a * pairs,) * 2 if a is b else (a * pairs, b * pairs)
        by_key = a.mT.contiguous()
        return cls(x, by_key, by_key if a is b else b.mT.contiguous(), z)

    def key_blocks(self) -> Iterator[tuple[int, slice]]:
        """Positions where blocks of keys begin, and where their keys are in the patterns."""
        size, first, count = key_levels.KEYS_PER_BLOCK, self.x.first, self.x.k.shape[2]
        for start in range(0, count, size):
            yield first + start, slice(start, min(start + size, count))


def add_key_terms(sums: HeadSums, x: Heads, metric: Tensor, queries: int) -> None:
    """Add k,k for pairs of groups and v,k for all pairs of heads, by blocks of so many queries."""
    starts = range(0, x.positions.shape[1], queries)
    blocks = [_Block.of(x.queries(start, start + queries, key_levels.KEYS_PER_BLOCK)) for start in starts]
    for g in range(x.shape.heads):
        _add_value_terms(sums.vk[:, g], x, g, blocks)
    heads, width = x.shape.heads, x.shape.width
    Q = metric.unflatten(0, (heads, width)).unflatten(2, (heads, width))  # [h, i, g, j]
    turns = KeyTurns(x.shape, x.first + x.k.shape[2], x.v)
    groups = [slice(head, head + x.shape.shared) for head in range(0, heads, x.shape.shared)]
    for G, one in enumerate(groups):
        for G2, other in enumerate(groups[G:], G):
            brackets = _GroupPair(x, one, other, Q[one, :, other], turns)
            for block in blocks:
                brackets.add(block)
            # the transpose of a group with itself is the other half
            sums.kk[G, G2] += brackets.turned_sum() * (0.5 if G == G2 else 1.0)


def _add_value_terms(total: Tensor, x: Heads, g: int, blocks: list[_Block]) -> None:
    """v,k of one head's keys with the values of all heads h, [h, i, j]."""
    rotary = x.shape.rotary
    assert rotary is not None
    pulled = torch.zeros_like(x.v)  # Σ_s ab_st q̃^g_s [h, n, T, j]
    for block in blocks:
        q, keys, first = block.x.turned_q[g], block.x.keys, block.x.first - x.first
        ab = block.a * block.b[g]  # [h, n, T, S]
        pulled[:, :, first : first + len(keys)] += ab @ q
        cos, sin = rotary.waves(keys, ab)  # [T, p]
        mixed = torch.cat([cos, sin, torch.ones_like(cos[:, :1])], dim=1).T @ ab  # Σ_t [cos, sin, 1] ab_st
        cos, sin, rows = mixed.split([cos.shape[1], cos.shape[1], 1], dim=-2)  # [h, n, p, S]
        q, other_q, rest = q.mT.tensor_split([cos.shape[-2], 2 * cos.shape[-2]], dim=-2)
        by_query = torch.cat([q * cos + other_q * sin, other_q * cos - q * sin, rest * rows], dim=-2)
        total -= (block.z[g].mT @ by_query.mT).sum(1)
    total += x.v[g].flatten(0, 1).T @ rotary.turn(pulled, x.keys, back=True).flatten(1, 2)


class _GroupPair:
    """k,k of the pairs of heads of two groups, or of a group with itself."""

    def __init__(self, x: Heads, one: slice, other: slice, Q: Tensor, turns: KeyTurns):
        """Heads of both groups, and their blocks of the metric Q [h, i, g, j]."""
        self.x, self.one, self.other, self.Q, self.turns = x, one, other, Q, turns
        self.brackets: dict[int, KeyBrackets] = {}  # by the position where a block of keys begins
        v, others = x.v[one.start], x.v[other.start]  # [n, T, h]: the same for all heads of a group
        spread = torch.einsum("nti,higj->nthgj", v, Q)
        self.by_key = torch.einsum("nthgj,ntj->nthg", spread, others)  # v_tᵀ Q v′_t
        self.values = torch.cat([-v, -others, torch.ones_like(v[..., :1])], dim=-1)  # [n, T, 2h + 1]

    def add(self, block: _Block) -> None:
        """Add some queries."""
        q, other_q = (
            self.turns.ordered(block.x.turned_q[group]).permute(3, 0, 1, 2).flatten(2)
            for group in (self.one, self.other)
        )  # [2p′, h, n·S]
        seen = self._seen(block)
        for start, here in block.key_blocks():
            first = start - self.x.first
            b, other_b = (block.b[group][:, :, here] for group in (self.one, self.other))  # [h, n, B, S]
            keys = slice(first, first + b.shape[2])
            deviations = (self.values[:, keys] @ seen.flatten(2)).unflatten(2, seen.shape[2:])
            deviations += self.by_key[:, keys, :, :, None]  # (v_t − z^h_s)ᵀ Q (v′_t − z^g_s) [n, B, h, g, S]
            weights = b[:, None] * other_b  # [h, g, n, B, S]
            weights = (weights * deviations.permute(2, 3, 0, 1, 4)).permute(3, 0, 1, 2, 4)
            if start not in self.brackets:
                self.brackets[start] = KeyBrackets(self.turns, start, b.shape[2], self.one == self.other)
            self.brackets[start].add(weights.flatten(3), q, other_q)

    def _seen(self, block: _Block) -> Tensor:  # [n, 2h + 1, h, g, S]
        """Q z^g_s, Qᵀz^h_s and z^h_sᵀ Q z^g_s: what v_t, v′_t and 1 are multiplied with in deviations."""
        z, others = block.z[self.one], block.z[self.other]  # [h, n, S, i], [g, n, S, j]
        pushed = torch.einsum("higj,gnsj->nihgs", self.Q, others)
        pulled = torch.einsum("hnsi,higj->njhgs", z, self.Q)
        both = torch.einsum("njhgs,gnsj->nhgs", pulled, others)
        return torch.cat([pushed, pulled, both[:, None]], dim=1)

    def turned_sum(self) -> Tensor:  # [h, h]
        """Σ_t R_tᵀ X_t R_t."""
        blocks = [brackets.turned() for brackets in self.brackets.values()]
        return self.turns.restored(torch.stack(blocks).sum(0))
