"""Key terms of Σ_st N_stᵀQN_st where rotary positions turn queries and keys.

A key sees R_tᵀq̃_s, which depends on both positions. With bb = b^h ∘ b^g, ab = a^h ∘ b^g and
w_st = bb_st (v_t − z^h_s)ᵀ Q (v′_t − z^g_s) the two terms of heads h and g of the groups G and G′ are

    k,k  Σ_t R_tᵀ X_t R_t,  X_t = Σ_s Σ_hg w^hg_st q̃^h_s q̃^g_sᵀ                     at most T h² per query
    v,k  Σ_t v′_t (R_tᵀ Σ_s ab_st q̃^g_s)ᵀ − Σ_s z^g_s (Σ_t ab_st R_tᵀq̃^g_s)ᵀ       T h per query:

R_tᵀq̃_s is linear in cos tθ_e and sin tθ_e, so that the last sum over keys needs ab·cos and ab·sin alone. What
depends on the key is summed over blocks of queries, and in k,k over samples, before it is turned.

Heads of a group share keys, and k,k is wanted for pairs of groups alone, so that the sum over one of the two
heads goes first, y^h_s = Σ_g w^hg_st q̃^g_s and X_t = Σ_s Σ_h q̃^h_s y^h_sᵀ: for groups of c heads c h²
multiplications per query and key, where pairs of heads one by one take c² h².

*Levels of slow coordinates.* With pairs of coordinates as complex numbers c_e, turning back by t multiplies
c_e by exp(−itθ_e). So the products c_e conj(c′_e′) and c_e c′_e′, which hold what an outer product of two
vectors does, are multiplied by exp(−it(θ_e ∓ θ_e′)): an entry of Σ_t R_tᵀX_tR_t is a dot product with one
function of t. Most frequencies of a head are low, and over a block of B keys the functions of t with
frequencies up to 2θ are, to rounding, combinations of 2θB/π and a few more (Slepian 1978), U [B, n]. So for
pairs of slow coordinates X_t is not summed for every key: UᵀX is, [n, h²], and takes dot products with the
functions' coordinates in U. Coordinates up to a lower frequency have fewer functions again, combinations of
those of the level above. A pair of coordinates belongs to the level of the faster one, which stands in y, so
that y has few coordinates.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise

import torch
from torch import Tensor

from interbasis.network.cores.attention.heads import AttentionShape, Heads
from interbasis.network.cores.attention.moments import HeadSums

KEYS_PER_BLOCK = 128
"""Keys whose turns are combinations of the same functions: blocks of fewer skip more keys that no query sees,
and blocks of more have fewer functions per key."""
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-8}
"""Singular values below this share of the largest are left out."""
MULTIPLICATIONS_PER_ENTRY = 4
"""Multiplications of a matrix product that an entry of y is counted as; it only moves the bounds between
levels."""
MAX_LEVELS = 4
"""Two levels save a quarter of the time of a sum for every key, four of them a little more, six no more."""
MAX_FACTOR_ELEMENTS = 2**19
"""Elements of y that are multiplied at once: few enough to stay in the cache."""


@dataclass(frozen=True, eq=False)
class Level:
    """Pairs of complex coordinates, in order from fast to slow, whose faster one is between two bounds."""

    step: Tensor | None  # from the functions of the level above, or the keys, to its own [B or n′, n]
    first: int  # its own coordinates: first … last − 1
    last: int
    turns: Tensor  # of c conj(c′) and c c′, with c from `first` on and c′ of its own, [2, ·, ·, B or n]

    @property
    def coordinates(self) -> slice:
        return slice(self.first, self.last)

    @property
    def from_first(self) -> slice:
        """The level's coordinates and slower ones."""
        return slice(self.first, None)

    @property
    def slower(self) -> slice:
        return slice(self.last, None)


class KeyTurns:
    """Functions that sums over a block of keys are dot products with, and the order of coordinates."""

    def __init__(self, shape: AttentionShape, keys: int, like: Tensor):
        assert shape.rotary is not None
        self.shape, self.rotary, self.like = shape, shape.rotary, like
        self.keys = min(keys, KEYS_PER_BLOCK)
        self.pairs, angles = len(shape.rotary.frequencies), pair_frequencies(shape)
        angle = torch.tensor(angles, dtype=torch.float64)
        self.order = angle.argsort(descending=True, stable=True)
        cos, sin = shape.rotary.waves(torch.arange(self.keys, device=like.device), like)  # [B, p]
        still = torch.ones_like(cos[:, :1]).expand(-1, len(angles) - self.pairs)
        waves = torch.cat([torch.complex(cos, -sin), still], dim=1)[:, self.order.to(like.device)]  # [B, p′]
        bounds = level_bounds(angles, self.keys, shape.shared, like.dtype)
        self.levels: list[Level] = []
        above: Tensor | None = None  # functions of the level above, as functions of t
        for bound, lower in zip(bounds, (*bounds[1:], -1.0), strict=True):
            functions = band(self.keys, bound, like.dtype).to(like) if bound < math.inf else None
            step = functions if above is None or functions is None else above.T @ functions
            first, last = int((angle > bound).sum()), int((angle > lower).sum())
            outer, inner = waves[:, first:, None], waves[:, None, first:last]
            turns = _coordinates(functions, torch.stack([outer * inner.conj(), outer * inner], dim=1))
            self.levels.append(Level(step, first, last, turns))
            above = functions

    @cached_property
    def places(self) -> Tensor:  # [h, rounded up to an even number]
        """Coordinates from fast to slow, the two of a pair side by side; those not turned two by two."""
        turned = torch.arange(2 * self.pairs).view(2, -1).T
        unturned = torch.arange(2 * self.pairs, self.shape.width + self.shape.width % 2).view(-1, 2)
        return torch.cat([turned, unturned])[self.order].flatten().to(self.like.device)

    def ordered(self, q: Tensor) -> Tensor:  # [..., h] -> [..., 2p′]
        """Coordinates in the order of levels; one without a partner gets 0."""
        return torch.nn.functional.pad(q, (0, self.shape.width % 2))[..., self.places]

    def restored(self, products: Tensor) -> Tensor:  # [2, p′, p′] -> [h, h]
        """Back from sums of c conj(c′) and c c′ to those of products of coordinates."""
        conjugated, plain = products
        real, imaginary = (conjugated + plain) / 2, (plain - conjugated) / 2  # x x′ + i y x′,  −y y′ + i x y′
        rows = torch.stack([real.real, imaginary.imag, real.imag, -imaginary.real], dim=-1)  # [p′, p′, 4]
        whole = rows.unflatten(-1, (2, 2)).transpose(1, 2).flatten(2).flatten(0, 1)  # [2p′, 2p′]
        back = self.places.argsort()[: self.shape.width]
        return whole[back[:, None], back]

    def block_turns(self, start: int) -> Tensor:  # [2, p′, p′]
        """Factors of c conj(c′) and c c′ for a block that begins at this position."""
        frequencies = torch.zeros(len(self.order), dtype=torch.float64)
        frequencies[: self.pairs] = torch.tensor(self.rotary.frequencies, dtype=torch.float64)
        turns = torch.polar(torch.ones_like(frequencies), -start * frequencies[self.order])
        both = torch.stack([turns[:, None] * turns.conj(), turns[:, None] * turns])
        return both.to(self.levels[0].turns)


def pair_frequencies(shape: AttentionShape) -> tuple[float, ...]:
    """Frequencies of a head's pairs of coordinates; 0 for those that are not turned."""
    turned = () if shape.rotary is None else shape.rotary.frequencies
    return (*(abs(angle) for angle in turned), *[0.0] * -(-(shape.width - shape.turned) // 2))


def _coordinates(functions: Tensor | None, waves: Tensor) -> Tensor:  # [B, 2, ·, ·] -> [2, ·, ·, B or n]
    """Coordinates of complex functions of t in U, or the functions themselves."""
    waves = waves.permute(1, 2, 3, 0)
    if functions is None:
        return waves.contiguous()
    return torch.complex(waves.real @ functions, waves.imag @ functions)


@lru_cache(maxsize=64)
def level_bounds(angles: tuple[float, ...], keys: int, shared: int, dtype: torch.dtype) -> tuple[float, ...]:
    """The highest frequency of every level, by operations; infinity is a sum for every key."""
    cost = partial(operations, angles, keys, shared, dtype)
    best: dict[float, tuple[float, ...]]  # levels from a bound on
    best = {bound: (bound,) for bound in (*set(angles), math.inf)}
    for _ in range(1, MAX_LEVELS):
        best = {
            bound: min(((bound, *(best[lower] if lower < bound else ())) for lower in best), key=cost)
            for bound in best
        }
    chosen = best[math.inf]
    return chosen[1:] if chosen[1:2] == (max(angles),) else chosen  # then no sum for every key


def operations(
    angles: tuple[float, ...], keys: int, shared: int, dtype: torch.dtype, bounds: tuple[float, ...]
) -> float:
    """Per query, block of keys and pair of groups: multiplications of these levels, or what takes as long."""
    functions = [band(keys, bound, dtype).shape[1] if bound < math.inf else keys for bound in bounds]
    widths = [2 * sum(angle <= bound for angle in angles) for bound in bounds]
    total = 0.0
    for count, width, slower in zip(functions, widths, (*widths[1:], 0), strict=True):
        level_width = width - slower
        total += shared * count * level_width * (width + slower + 2 * shared * MULTIPLICATIONS_PER_ENTRY)
    return total + shared**2 * sum(count * following for count, following in pairwise(functions))


@lru_cache(maxsize=256)
def band(length: int, highest: float, dtype: torch.dtype) -> Tensor:  # [length, n]
    """Orthonormal functions of t that span cos tω and sin tω for all |ω| ≤ 2·highest, to rounding.

    From the singular vectors of as many of these functions as determine the others by interpolation in ω.
    """
    count = math.ceil(0.6 * highest * length) + 40
    nodes = highest * (1 - torch.linspace(0, math.pi, count, dtype=torch.float64).cos())  # Chebyshev's
    angle = (torch.arange(length, dtype=torch.float64) - (length - 1) / 2)[:, None] * nodes
    vectors, values, _ = torch.linalg.svd(torch.cat([angle.cos(), angle.sin()], dim=1), full_matrices=False)
    return vectors[:, values > ROUNDING[dtype] * values[0]]


class KeyBrackets:
    """Running sums over queries for two groups of heads and one block of keys."""

    def __init__(self, turns: KeyTurns, start: int, keys: int, same: bool):
        """Begin sums over keys from position ``start`` on; with ``same``, one group's, they are symmetric."""
        self.turns, self.start, self.keys, self.same = turns, start, keys, same
        self.upper = [self._zeros(level, level.from_first) for level in turns.levels]
        self.lower = [] if same else [self._zeros(level, level.slower) for level in turns.levels]

    def _zeros(self, level: Level, partners: slice) -> Tensor:  # [partners, B or n, level]
        rows, columns = (
            2 * len(range(len(self.turns.order))[part]) for part in (partners, level.coordinates)
        )
        functions = self.keys if level.step is None else level.step.shape[1]
        return self.turns.like.new_zeros(rows, functions, columns)

    def add(self, weights: Tensor, q: Tensor, other_q: Tensor) -> None:
        """Add queries: w^hg_st [B, h, g, S], q̃^h [2p′, h, S] and q̃^g [2p′, g, S] in the order of levels."""
        for number, level in enumerate(self.turns.levels):
            if level.step is not None:  # Σ_t U_t w_st [n, h, g, S]
                weights = (level.step[: len(weights)].T @ weights.flatten(1)).unflatten(1, weights.shape[1:])
            ranges = level.coordinates, level.from_first, level.slower
            level_part, from_first, slower = (_real(part) for part in ranges)
            _add_products(self.upper[number], other_q[from_first], q[level_part], weights)
            if not self.same:
                _add_products(self.lower[number], q[slower], other_q[level_part], weights.transpose(1, 2))

    def turned(self) -> Tensor:  # [2, p′, p′]
        """The sums of c conj(c′) and c c′ over the block's keys, turned."""
        count = len(self.turns.order)
        result = self.turns.levels[0].turns.new_zeros(2, count, count)
        for number, level in enumerate(self.turns.levels):
            width = level.last - level.first
            upper = _dots(self.upper[number], level.turns).mT  # c′ conj(c) and c′ c
            block = level.coordinates, level.from_first
            result[0, *block], result[1, *block] = upper[0].conj(), upper[1]
            if self.same:
                result[:, level.slower, level.coordinates] = upper[..., width:].mT
            else:
                result[:, level.slower, level.coordinates] = _dots(self.lower[number], level.turns[:, width:])
        return result * self.turns.block_turns(self.start)


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
    (_, heads, other_heads, queries), columns = weights.shape, len(right)
    right = right[:, :, None].expand(-1, -1, other_heads, -1).contiguous()  # [j, h, g, S]
    functions = max(1, MAX_FACTOR_ELEMENTS // (columns * other_heads * queries))
    for part, sums in zip(weights.split(functions), total.split(functions, 1), strict=True):
        y = part[:, None, 0] * right[:, 0]  # [n, j, g, S]
        for head in range(1, heads):
            y.addcmul_(part[:, None, head], right[:, head])
        sums.flatten(1).addmm_(left.flatten(1), y.flatten(2).flatten(0, 1).T)


def _dots(sums: Tensor, turns: Tensor) -> Tensor:  # [2i, n, 2j], [2, i, j, n or more] -> [2, i, j]
    """Σ_n of c conj(c′) and c c′ times their turns, from sums of products of real coordinates."""
    (xx, xy), (yx, yy) = sums.unflatten(2, (-1, 2)).unflatten(0, (-1, 2)).permute(1, 4, 0, 3, 2)
    conjugated, plain = torch.complex(xx + yy, yx - xy), torch.complex(xx - yy, yx + xy)
    turns = turns[..., : sums.shape[1]]
    return torch.stack([(conjugated * turns[0]).sum(-1), (plain * turns[1]).sum(-1)])


@dataclass(frozen=True, eq=False)
class _Block:
    """Some of the queries: their patterns, and where the keys that they see begin and end."""

    x: Heads
    a: Tensor  # [H, n, T, S], 0 for pairs that do not count
    b: Tensor
    z: Tensor  # [H, n, S, h]

    @classmethod
    def from_heads(cls, x: Heads) -> "_Block":
        a, b = x.pattern()
        z, (pairs, _) = a @ x.v, x.counted_pairs()
        if pairs is not None:
            a, b = (a * pairs,) * 2 if a is b else (a * pairs, b * pairs)
        by_key = a.mT.contiguous()
        return cls(x, by_key, by_key if a is b else b.mT.contiguous(), z)

    def key_blocks(self) -> Iterator[tuple[int, slice]]:
        """Positions where blocks of keys begin, and where their keys are in the patterns."""
        size, first, count = KEYS_PER_BLOCK, self.x.first, self.x.k.shape[2]
        for start in range(0, count, size):
            yield first + start, slice(start, min(start + size, count))


def add_key_terms(sums: HeadSums, x: Heads, metric: Tensor, queries: int) -> None:
    """Add k,k for pairs of groups and v,k for all pairs of heads, by blocks of so many queries."""
    starts = range(0, x.positions.shape[1], queries)
    blocks = [_Block.from_heads(x.queries(start, start + queries, KEYS_PER_BLOCK)) for start in starts]
    for g in range(x.shape.heads):
        _add_value_terms(sums.vk[:, g], x, g, blocks)
    heads, width = x.shape.heads, x.shape.width
    Q = metric.unflatten(0, (heads, width)).unflatten(2, (heads, width))  # [h, i, g, j]
    turns = KeyTurns(x.shape, x.first + x.k.shape[2], x.v)
    groups = [slice(head, head + x.shape.shared) for head in range(0, heads, x.shape.shared)]
    for G, group in enumerate(groups):
        for G2, other_group in enumerate(groups[G:], G):
            brackets = _GroupPair(x, group, other_group, Q[group, :, other_group], turns)
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
        q, other_q, unturned_q = q.mT.tensor_split([cos.shape[-2], 2 * cos.shape[-2]], dim=-2)
        by_query = torch.cat([q * cos + other_q * sin, other_q * cos - q * sin, unturned_q * rows], dim=-2)
        total -= (block.z[g].mT @ by_query.mT).sum(1)
    total += x.v[g].flatten(0, 1).T @ rotary.turn(pulled, x.keys, back=True).flatten(1, 2)


class _GroupPair:
    """k,k of the pairs of heads of two groups, or of a group with itself."""

    def __init__(self, x: Heads, group: slice, other_group: slice, Q: Tensor, turns: KeyTurns):
        """Heads of both groups, and their blocks of the metric Q [h, i, g, j]."""
        self.x, self.group, self.other_group, self.Q, self.turns = x, group, other_group, Q, turns
        self.brackets: dict[int, KeyBrackets] = {}  # by the position where a block of keys begins
        v, other_v = x.v[group.start], x.v[other_group.start]  # [n, T, h]: the same for all heads of a group
        spread = torch.einsum("nti,higj->nthgj", v, Q)
        self.by_key = torch.einsum("nthgj,ntj->nthg", spread, other_v)  # v_tᵀ Q v′_t
        self.values = torch.cat([-v, -other_v, torch.ones_like(v[..., :1])], dim=-1)  # [n, T, 2h + 1]

    def add(self, block: _Block) -> None:
        """Add a block of queries."""
        q, other_q = (
            self.turns.ordered(block.x.turned_q[group]).permute(3, 0, 1, 2).flatten(2)
            for group in (self.group, self.other_group)
        )  # [2p′, h, n·S]
        seen = self._seen(block)
        for start, here in block.key_blocks():
            first = start - self.x.first
            b, other_b = (
                block.b[group][:, :, here] for group in (self.group, self.other_group)
            )  # [h, n, B, S]
            keys = slice(first, first + b.shape[2])
            deviations = (self.values[:, keys] @ seen.flatten(2)).unflatten(2, seen.shape[2:])
            deviations += self.by_key[:, keys, :, :, None]  # (v_t − z^h_s)ᵀ Q (v′_t − z^g_s) [n, B, h, g, S]
            weights = b[:, None] * other_b  # [h, g, n, B, S]
            weights = (weights * deviations.permute(2, 3, 0, 1, 4)).permute(3, 0, 1, 2, 4)
            if start not in self.brackets:
                self.brackets[start] = KeyBrackets(
                    self.turns, start, b.shape[2], self.group == self.other_group
                )
            self.brackets[start].add(weights.flatten(3), q, other_q)

    def _seen(self, block: _Block) -> Tensor:  # [n, 2h + 1, h, g, S]
        """Q z^g_s, Qᵀz^h_s and z^h_sᵀ Q z^g_s: what v_t, v′_t and 1 are multiplied with in deviations."""
        z, other_z = block.z[self.group], block.z[self.other_group]  # [h, n, S, i], [g, n, S, j]
        pushed = torch.einsum("higj,gnsj->nihgs", self.Q, other_z)
        pulled = torch.einsum("hnsi,higj->njhgs", z, self.Q)
        both = torch.einsum("njhgs,gnsj->nhgs", pulled, other_z)
        return torch.cat([pushed, pulled, both[:, None]], dim=1)

    def turned_sum(self) -> Tensor:  # [h, h]
        """Σ_t R_tᵀ X_t R_t."""
        blocks = [brackets.turned() for brackets in self.brackets.values()]
        return self.turns.restored(torch.stack(blocks).sum(0))
