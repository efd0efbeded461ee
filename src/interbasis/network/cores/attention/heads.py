"""A batch as every head sees it: queries at some positions, the keys and values, and the pattern."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.network.cores.attention.bias import ScoreBias
from interbasis.network.cores.attention.rotary import Rotary
from interbasis.network.cores.core import Counted

POSITIONS_PER_BLOCK = 128
"""Positions summed for at once: fewer skip more of what causal attention does not see, and run slower."""


@dataclass(frozen=True)
class AttentionShape:
    """Shape and kind of an attention layer."""

    heads: int
    width: int
    """Coordinates of one head."""
    causal: bool = True
    scale: float | None = None
    """Factor of the scores; None is 1/√width."""
    window: int | None = None
    """Keys a query sees at most, its own position the last of them."""
    cap: float | None = None
    """Scores are capped to cap · tanh(score / cap)."""
    rotary: Rotary | None = None
    key_heads: int | None = None
    """Heads of keys and values, each shared by a group of consecutive heads; None is one for each head."""
    bias: ScoreBias | None = None
    """Constants that are added to scores, after the cap."""
    sinks: tuple[float, ...] | None = None
    """For each head, the score of a key that every query sees and that has no value (gpt-oss)."""

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise InterbasisError(
                f"key_heads must divide the number of heads, received {self.key_heads} for {self.heads} heads"
            )
        if self.window is not None and not self.causal:
            raise InterbasisError("a local window requires causal attention, received causal=False")
        constants = [self.sinks, *([self.bias.slopes, self.bias.tables] if self.bias else [])]
        if any(each and len(each) != self.heads for each in constants):
            raise InterbasisError(
                f"sinks and score biases must have an entry for each of the {self.heads} heads, received "
                f"{[len(each) for each in constants if each]}"
            )

    @property
    def groups(self) -> int:
        """Groups of heads that share keys and values."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def shared(self) -> int:
        """Heads in a group."""
        return self.heads // self.groups

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Read-outs of all queries, keys and values."""
        return self.heads * self.width, self.groups * self.width, self.groups * self.width

    def parts(self, u: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of every head from [q | k | v]: heads and their coordinates in place of ``dim`` ≥ 0."""
        q, k, v = (part.unflatten(dim, (-1, self.width)) for part in u.split(self.sizes, dim))
        return q, self.for_all_heads(k, dim), self.for_all_heads(v, dim)

    def for_all_heads(self, x: Tensor, dim: int = 0) -> Tensor:
        """Repeat a tensor that has an entry per group, in dimension ``dim`` ≥ 0, for each of their heads."""
        return x if self.shared == 1 else x.repeat_interleave(self.shared, dim)

    def rows(self, head: int) -> tuple[slice, slice, slice]:
        """The rows of [q | k | v] that one head reads."""
        queries, keys, _ = self.sizes
        places = head, queries // self.width + head // self.shared
        q, k = (slice(place * self.width, (place + 1) * self.width) for place in places)
        return q, k, slice(k.start + keys, k.stop + keys)

    @property
    def sigma(self) -> float:
        """σ, the factor of the scores."""
        return self.width**-0.5 if self.scale is None else self.scale

    @property
    def has_odd_scores(self) -> bool:
        """Whether scores are more than σ q·k, so that patterns are written out."""
        return any(part is not None for part in (self.cap, self.bias, self.sinks))

    @property
    def turned(self) -> int:
        """Coordinates of a head that are turned, its first ones."""
        return 0 if self.rotary is None else 2 * len(self.rotary.frequencies)

    def keys_seen(self, queries: slice, keys: int) -> slice:
        """The positions from the first to the last of ``keys`` that any of these queries sees."""
        if not self.causal:
            return slice(0, keys)
        return slice(0 if self.window is None else max(0, queries.start + 1 - self.window), queries.stop)

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:  # [..., S], [T] -> [..., S, T]
        """Mask of the key positions that a query position sees where attention is causal."""
        distance = queries[..., None] - keys
        if self.window is None:
            return distance >= 0
        return (distance >= 0) & (distance < self.window)


@dataclass(frozen=True)
class Heads:
    """Queries at some positions, with keys and values from position ``first`` on."""

    shape: AttentionShape
    positions: Tensor  # [n, S]
    q: Tensor  # [heads, n, S, h], as the key at the query's own position sees them
    turned_q: Tensor  # [heads, n, S, h]
    k: Tensor  # [heads, n, T, h], turned
    v: Tensor  # [heads, n, T, h]
    first: int = 0
    counted: Counted | None = None
    """Masks of the positions of the whole batch that count in sums; None is all of them."""
    first_head: int = 0

    @classmethod
    def from_read_outs(cls, shape: AttentionShape, u: Tensor, positions: Tensor) -> "Heads":
        """Split read-outs u [n, T, (heads + 2·groups)·h] = [q | k | v], with query positions [n, S]."""
        q, k, v = (part.permute(2, 0, 1, 3).contiguous() for part in shape.parts(u, 2))  # [heads, n, T, h]
        q = q.gather(2, positions[None, :, :, None].expand(shape.heads, -1, -1, shape.width))
        if shape.rotary is None:
            return cls(shape, positions, q, q, k, v)
        keys = torch.arange(k.shape[2], device=u.device)
        turned = shape.rotary.turn(q, positions)
        seen = shape.rotary.turn(turned, positions, back=True)  # R_sᵀR_s q_s
        return cls(shape, positions, seen, turned, shape.rotary.turn(k, keys), v)

    def queries(self, start: int, stop: int, multiple: int = 1) -> "Heads":
        """Return a range of the queries, with the keys and values that any of them sees.

        Keys begin and end at multiples of so many positions, or where there are no more.
        """
        positions = self.positions[:, start:stop]
        left, right = 0, self.k.shape[2]
        if self.shape.causal:
            end = int(positions.max()) + 1
            right = min(right, end + -end % multiple - self.first)
            if self.shape.window is not None:
                begin = max(0, int(positions.min()) + 1 - self.shape.window)
                left = max(0, begin - begin % multiple - self.first)
        return replace(
            self,
            positions=positions,
            q=self.q[:, :, start:stop],
            turned_q=self.turned_q[:, :, start:stop],
            k=self.k[:, :, left:right],
            v=self.v[:, :, left:right],
            first=self.first + left,
        )

    def head(self, number: int) -> "Heads":
        """Return a single head."""
        part = slice(number, number + 1)
        q, turned_q, k, v = (x[part] for x in (self.q, self.turned_q, self.k, self.v))
        return replace(self, q=q, turned_q=turned_q, k=k, v=v, first_head=self.first_head + number)

    def queries_that_see(self, keys: slice) -> slice:
        """The queries of one sample, in order, from the first to the last that sees any of these keys."""
        if not self.shape.causal:
            return slice(0, self.positions.shape[1])
        stop = min(keys.stop, self.k.shape[2]) + self.first
        ends = [keys.start + self.first, stop if self.shape.window is None else stop + self.shape.window - 1]
        start, end = torch.searchsorted(self.positions[0].contiguous(), torch.tensor(ends).to(self.positions))
        return slice(int(start), self.positions.shape[1] if self.shape.window is None else int(end))

    def keys_seen_by(self, queries: slice) -> slice:
        """The keys from the first to the last that any of these queries of one sample sees."""
        if not self.shape.causal:
            return slice(0, self.k.shape[2])
        positions = self.positions[0, queries] - self.first
        start = 0 if self.shape.window is None else max(0, int(positions[0]) + 1 - self.shape.window)
        return slice(start, int(positions[-1]) + 1)

    @property
    def keys(self) -> Tensor:  # [T]
        """The positions of the keys."""
        return torch.arange(self.first, self.first + self.k.shape[2], device=self.k.device)

    def pattern(self) -> tuple[Tensor, Tensor]:
        """a [heads, n, S, T] and b = a · cap′(score); without a cap they are the same tensor.

        With sinks, a query's weights add up to less than 1.
        """
        scores = (self.shape.sigma * self.turned_q) @ self.k.mT
        slope = None
        if self.shape.cap is not None:
            squashed = (scores / self.shape.cap).tanh_()
            scores, slope = self.shape.cap * squashed, 1 - squashed.square()
        heads = slice(self.first_head, self.first_head + len(self.q))
        if self.shape.bias is not None:
            scores = scores + self.shape.bias(heads, self.keys - self.distinct_positions()[..., None], scores)
        if self.shape.causal:
            scores = scores.masked_fill(~self.visible(), -torch.inf)
        if self.shape.sinks is None:
            a = scores.softmax(dim=-1)
        else:
            sinks = torch.tensor(self.shape.sinks[heads], dtype=torch.float64).to(scores)[:, None, None, None]
            a = torch.cat([scores, sinks.expand(*scores.shape[:3], 1)], dim=-1).softmax(dim=-1)[..., :-1]
        return a, a if slope is None else a * slope

    def visible(self) -> Tensor:
        """Mask of the keys that a query sees, [n or 1, S, T]."""
        return self.shape.visible(self.distinct_positions(), self.keys)

    def distinct_positions(self) -> Tensor:  # [n or 1, S]
        """The positions of the queries, once where they are the same in all samples."""
        return self.positions[:1] if self.positions.stride(0) == 0 else self.positions

    def centred(self) -> "Heads":
        """Values about their mean over the keys: v_t − z_s is the same, and float32 keeps more of its digits.

        Not with sinks, since z_s then moves by less than the values.
        """
        return self if self.shape.sinks else replace(self, v=self.v - self.v.mean(2, keepdim=True))

    def mixed_values(self) -> Tensor:  # [heads, n, S, h]
        """z, without the pattern being held where no gradient is wanted."""
        if self.shape.has_odd_scores or torch.is_grad_enabled():
            return self.pattern()[0] @ self.v
        visible = self.visible() if self.shape.causal else None
        return torch.nn.functional.scaled_dot_product_attention(
            self.turned_q, self.k, self.v, attn_mask=visible, scale=self.shape.sigma
        )

    def counted_pairs(self) -> tuple[Tensor | None, Tensor | None]:
        """1 for (query, key) where both count, [n, S, T], and for queries that count as input, too, [n, S].

        None where all count.
        """
        if self.counted is None:
            return None, None
        inputs, outputs = self.counted
        queries = outputs.gather(1, self.positions)
        keys = inputs[:, self.first : self.first + self.k.shape[2]]
        return queries[:, :, None] * keys[:, None], queries * inputs.gather(1, self.positions)

    def diagonal_weights(self, pattern: Tensor) -> Tensor:  # [heads, n, S, T] -> [heads, n, S]
        """a_ss, the weight that every query gives to its own position."""
        positions = (self.positions - self.first)[None, :, :, None].expand(len(pattern), -1, -1, 1)
        return pattern.gather(3, positions)[..., 0]

    def query_values(self) -> Tensor:  # [heads, n, S, h]
        """v_s at the positions of the queries."""
        positions = (self.positions - self.first)[None, :, :, None]
        return self.v.gather(2, positions.expand(len(self.v), -1, -1, self.v.shape[-1]))


class FeatureColumns(NamedTuple):
    """Features of one sample and how one head reads them, a column per feature."""

    at_queries: Tensor  # f_js of the queries [S, r]
    at_keys: Tensor  # f_jt of the keys [T, r]
    read_q: Tensor  # W_Q c_j [h, r]
    read_k: Tensor  # W_K c_j [h, r]


class CausalBlocks:
    """Products with weights [S, T] that leave out what causal attention does not see."""

    def __init__(self, x: Heads, weights: Tensor):
        self.weights = weights
        queries, keys = (_cut(length) for length in weights.shape)
        self.by_queries = [(block, x.keys_seen_by(block)) for block in queries]
        self.by_keys = [(x.queries_that_see(block), block) for block in keys]

    def over_queries(self, pairs: Tensor, factors: Tensor | None = None) -> Tensor:  # [S, ...] -> [T, ...]
        """Σ_s w_st factor_s pairs_s."""
        result = pairs.new_empty(self.weights.shape[1], *pairs.shape[1:])
        for queries, keys in self.by_keys:
            weights = self.weights[queries, keys].T
            weights = weights if factors is None else weights * factors[queries]
            torch.mm(weights, pairs[queries].flatten(1), out=result[keys].flatten(1))
        return result

    def over_keys(self, pairs: Tensor) -> Tensor:  # [T, ...] -> [S, ...]
        """Σ_t w_st pairs_t."""
        result = pairs.new_empty(len(self.weights), *pairs.shape[1:])
        for queries, keys in self.by_queries:
            torch.mm(self.weights[queries, keys], pairs[keys].flatten(1), out=result[queries].flatten(1))
        return result


def _cut(length: int) -> list[slice]:
    starts = range(0, length, POSITIONS_PER_BLOCK)
    return [slice(start, min(start + POSITIONS_PER_BLOCK, length)) for start in starts]
