"""The k largest values of every feature in a stream, no context twice; exact, in memory that does not grow.

Of values in equal contexts only the largest counts. The k largest of a union are among the k largest of its
parts, so parts are reduced and merged. Equal values go by their order in the data.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Candidates:
    """Values with their places, largest first, [k, features] each; −∞ stands for none."""

    values: Tensor
    places: Tensor
    """sample · 2³¹ + position."""
    contexts: Tensor
    around: Tensor
    """The feature's values near by, [k, features, window]."""

    def pick(self, rows: Tensor) -> "Candidates":  # [k', features]
        wide = rows[..., None].expand(*rows.shape, self.around.shape[2])
        return Candidates(
            self.values.gather(0, rows), self.places.gather(0, rows), self.contexts.gather(0, rows),
            self.around.gather(0, wide),
        )  # fmt: skip

    def merge(self, later: "Candidates", k: int) -> "Candidates":
        """The k largest of both; ``later`` comes after this in the data."""
        same = self.contexts[:, None] == later.contexts[None]  # [k, k', features]
        better = later.values[None] > self.values[:, None]
        mine = self.values.masked_fill((same & better).any(1), -torch.inf)
        theirs = later.values.masked_fill((same & ~better).any(0), -torch.inf)
        both = Candidates(
            torch.cat([mine, theirs]),
            torch.cat([self.places, later.places]),
            torch.cat([self.contexts, later.contexts]),
            torch.cat([self.around, later.around]),
        )
        return both.pick(largest(both.values, k))

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in vars(self).values())


POOL = 4
"""So many times more candidates are taken than are wanted, since contexts may repeat."""


def candidates(
    values: Tensor, places: Tensor, contexts: Tensor, k: int, radius: int, window: "Window"
) -> Candidates:
    """The k largest of values [n, S, features] at places and in contexts [n, S].

    Of values at most ``radius`` positions apart in one sample (surroundings overlap) the largest counts.
    """
    peaks = _peaks(values, radius).flatten(0, 1)  # [N, features]
    flat = contexts.flatten()
    rows = largest(peaks, POOL * k)
    pool = _first_of_each(peaks.gather(0, rows), flat[rows])
    exhausted = ~peaks.gather(0, rows[-1:]).isfinite() | (len(rows) == len(peaks))
    if (exhausted | (pool.isfinite().sum(0) >= k)).all():
        rows = rows.gather(0, largest(pool, k))
        chosen = pool.gather(0, largest(pool, k))
    else:  # some context repeats so often that it fills the pool
        peaks = _once_each(peaks, flat)
        rows = largest(peaks, k)
        chosen = peaks.gather(0, rows)
    return Candidates(chosen, places.flatten()[rows], flat[rows], window.around(values, rows))


def _first_of_each(values: Tensor, contexts: Tensor) -> Tensor:  # [m, features] each, largest first
    """The first value of each context; −∞ for those that repeat it."""
    same = contexts[:, None] == contexts[None]  # [m, m, features]
    earlier = torch.ones(len(values), len(values), dtype=torch.bool).tril(-1)[..., None]
    return values.masked_fill((same & earlier).any(1), -torch.inf)


def negated(some: Candidates) -> Candidates:
    """The same with the signs of values turned."""
    return replace(some, values=-some.values, around=-some.around)


@dataclass(frozen=True)
class Window:
    """So many positions before and after one."""

    before: int
    after: int

    @property
    def width(self) -> int:
        return self.before + 1 + self.after

    def around(self, values: Tensor, rows: Tensor) -> Tensor:
        """Values [n, S, features] near flat rows [k, features] (sample · S + position): [k, features, width].

        What lies outside the sample is 0.
        """
        _, S, F = values.shape
        sample, position = rows // S, rows % S
        near = position[..., None] + torch.arange(-self.before, self.after + 1)
        inside = (near >= 0) & (near < S)
        feature = torch.arange(F)[None, :, None]
        nearby = values[sample[..., None], near.clamp(0, S - 1), feature]
        return nearby.where(inside, 0.0).float()


def largest(values: Tensor, k: int) -> Tensor:  # [N, features] -> [min(k, N), features]
    """Rows of the k largest values of each column, largest first; equal ones in their order."""
    k = min(k, len(values))
    last = values.topk(k, dim=0).values[-1]
    above, level = values > last, values == last
    chosen = above | (level & (level.cumsum(0, dtype=torch.int32) <= k - above.sum(0)))
    rows = chosen.T.nonzero()[:, 1].view(values.shape[1], k)
    order = values.T.gather(1, rows).sort(dim=1, descending=True, stable=True).indices
    return rows.gather(1, order).T


def _peaks(values: Tensor, radius: int) -> Tensor:  # [n, S, features]
    """Values that are the largest within the radius, the first of equal ones; −∞ elsewhere."""
    S = values.shape[1]
    radius = min(radius, S - 1)
    if radius <= 0:
        return values
    by_feature = values.mT  # [n, features, S]
    _, where = torch.nn.functional.max_pool1d(by_feature, 2 * radius + 1, 1, radius, return_indices=True)
    return by_feature.masked_fill(where != torch.arange(S), -torch.inf).mT


def _once_each(values: Tensor, contexts: Tensor) -> Tensor:  # [N, features], [N] -> [N, features]
    """The largest value of each context, the first of equal ones; −∞ elsewhere."""
    distinct, group = contexts.unique(return_inverse=True)
    if len(distinct) == len(contexts):
        return values
    wide = group[:, None].expand_as(values)
    best = values.new_full((len(distinct), values.shape[1]), -torch.inf)
    best = best.scatter_reduce(0, wide, values, "amax")
    rows = torch.arange(len(values))[:, None].expand_as(values)
    at_best = torch.where(values == best.gather(0, wide), rows, len(values))
    first = torch.full(best.shape, len(values)).scatter_reduce(0, wide, at_best, "amin")
    return values.masked_fill(first.gather(0, wide) != rows, -torch.inf)
