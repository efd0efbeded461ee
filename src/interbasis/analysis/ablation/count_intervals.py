"""Bootstrap intervals of counts: the count on samples drawn again, as whole numbers.

Every draw has its own metric for each mask that was looked at in full, and so its own count. It lies above
the largest mask that fails on the draw, and not above the next one, which passes as all larger ones do. Three
things make the 95 % interval honest although masks are tried at some numbers of edges only:

- the mask with one edge less than the count is always looked at, so that a metric which falls off a cliff
  there leaves no room between the two;
- masks are added outwards until at most 2.5 % of the draws lie beyond them on either side, and in the gaps
  where the ends lie until these are narrow;
- the lower end is the smallest count that its draw allows, the upper end the largest.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from interbasis.analysis.ablation import bootstrap
from interbasis.analysis.ablation.evaluation import Score

STRIDE = 2**0.25
"""Ratio of the first masks on either side to the count; every further one is a stride longer."""
FINE = 0.05
"""A gap around an end of the interval is narrow if it is at most this part of the count, or one edge."""
ROUNDING = 1e-9
"""Relative; a draw that misses its limit by less than the rounding of float64 passes."""


class Masks(Protocol):
    """Masks of one section that can be evaluated, such as `search.SectionTrials`."""

    candidates: int

    @property
    def losses(self) -> Mapping[int, Tensor]: ...

    def whole(self, count: int) -> None: ...


@dataclass(frozen=True, eq=False)
class CountOnDraws:
    """A count on samples drawn again."""

    draws: Tensor
    """[draws], whole numbers; where a draw's count lies between two masks, by interpolation."""
    interval: tuple[int, int]
    """95 % of the draws, not narrower than the masks that were tried allow."""


def count_on_draws(masks: Masks, count: int, baseline: Score, tolerance: float) -> CountOnDraws:
    """Compute the count on samples drawn again; masks are evaluated in full where the draws need them."""

    def crossings() -> tuple[list[int], Tensor]:
        tried = sorted(masks.losses)
        scores = [Score(baseline.metric, masks.losses[number], baseline.counts) for number in tried]
        return tried, bootstrap.required_counts(tried, scores, baseline, tolerance)

    masks.whole(max(count - 1, 0))
    masks.whole(count)
    tried, draws = _widened(masks, count, crossings)
    while wide := [gap for gap in _end_gaps(tried, draws) if _is_wide(*gap)]:
        for fails, passes in wide:
            masks.whole((fails + passes) // 2)
        tried, draws = crossings()
    (fails, _), (_, high) = _end_gaps(tried, draws)
    return CountOnDraws(_forgiving(draws).ceil(), (fails + 1, high))


def _widened(
    masks: Masks, count: int, crossings: Callable[[], tuple[list[int], Tensor]]
) -> tuple[list[int], Tensor]:
    """Add masks on either side until few draws lie beyond them."""
    low, high, stride = float(count), float(max(count, 1)), STRIDE
    widen_low = widen_high = True
    while widen_low or widen_high:
        if widen_low:
            low /= stride
            masks.whole(math.floor(low))
        if widen_high:
            high *= stride
            masks.whole(min(math.ceil(high), masks.candidates))
        stride *= STRIDE
        tried, draws = crossings()
        few = bootstrap.TAIL_PROBABILITY
        widen_low = tried[0] > 0 and (draws <= tried[0]).double().mean().item() > few
        widen_high = tried[-1] < masks.candidates and (draws >= tried[-1]).double().mean().item() > few
    return tried, draws


def _end_gaps(tried: list[int], crossings: Tensor) -> list[tuple[int, int]]:
    """(largest that fails, next one) at both ends of 95 % of the draws; −1 where none is known to fail."""
    left_out = int(bootstrap.TAIL_PROBABILITY * len(crossings))
    ends = _forgiving(crossings).sort().values[[left_out, len(crossings) - 1 - left_out]]
    places = torch.searchsorted(torch.tensor(tried, dtype=ends.dtype), ends).tolist()
    return [(tried[place - 1] if place else -1, tried[place]) for place in places]


def _forgiving(crossings: Tensor) -> Tensor:
    return crossings - ROUNDING * (1 + crossings)


def _is_wide(fails: int, passes: int) -> bool:
    return fails >= 0 and passes - fails > max(1.0, FINE * passes)
