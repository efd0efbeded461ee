"""Bootstrap: variation of a number over samples drawn again from those that were evaluated.

All numbers of one comparison are resampled with the same draws, so differences between them are paired.

An edge count is a whole number, and masks are tried at some numbers of edges only. Every draw has its own
metric for each mask that was looked at in full, and so its own count. It lies above the largest mask that
fails on the draw, and not above the next one, which passes as all larger ones do. Three things make the 95 %
interval of the count honest:

- the mask with one edge less than the count is always looked at, so that a metric which falls off a cliff
  there leaves no room between the two;
- masks are added outwards until at most 2.5 % of the draws lie beyond them on either side, and in the gaps
  where the ends lie until these are narrow;
- the lower end is the smallest count that its draw allows, the upper end the largest.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from interbasis.analysis.ablation.evaluation import Score

DRAWS = 1000
TAIL_PROBABILITY = 0.025
"""Share of the draws that a 95 % interval leaves out on either side."""
ROUNDING = 1e-12
"""A draw fails if it misses its limit by more than float64 may have rounded."""
DRAWS_PER_BLOCK = 100
"""Draws held in memory at once."""
STRIDE = 2**0.25
"""Ratio of the first masks on either side to the count; every further one is a stride longer."""
FINE = 0.05
"""A gap around an end of the interval is narrow if it is at most this part of the count, or one edge."""
RELATIVE_ROUNDING = 1e-9
"""A draw whose count is above a mask's by less than the rounding of float64 has the count of the mask."""


def central(draws: Tensor, coverage: float = 0.95) -> tuple[float, float]:  # [draws]
    """The interval that holds this share of the draws, as many left out below as above.

    Draws for which the number is not defined are left out.
    """
    tail = (1 - coverage) / 2
    low, high = draws.nanquantile(torch.tensor([tail, 1 - tail], dtype=draws.dtype))
    return low.item(), high.item()


def resampled(scores: list[Score], draws: int, seed: int) -> Iterator[Tensor]:
    """The values of all scores on the same resampled samples, blocks of [draws, scores]."""
    samples = len(scores[0].losses)
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, draws, DRAWS_PER_BLOCK):
        chosen = torch.randint(samples, (min(DRAWS_PER_BLOCK, draws - start), samples), generator=generator)
        weights = torch.zeros(chosen.shape, dtype=torch.float64)
        weights.scatter_add_(1, chosen, torch.ones_like(weights))
        yield torch.stack([score.resampled(weights) for score in scores], dim=1)


def required_counts(
    tried: Sequence[int], scores: Sequence[Score], baseline: Score, tolerance: float, seed: int = 0
) -> Tensor:  # [draws]
    """Counts required on samples drawn again: a number per draw, a fraction where it lies between two counts.

    ``scores`` belong to the rising numbers ``tried``; every draw has its own baseline, and what passes is
    that ± the tolerance. A draw's number lies between the largest of ``tried`` that fails and the next one,
    which passes as all larger ones do, where the metric that is linear in log(1 + number) crosses the limit.
    If all pass it is the smallest of ``tried``; if the largest fails, that.
    """
    if len(tried) == 1:
        return torch.full((DRAWS,), float(tried[0]), dtype=torch.float64)
    values = torch.cat(list(resampled([*scores, baseline], DRAWS, seed)))  # [draws, points + 1]
    worse = values[:, :-1] - values[:, -1:]
    if baseline.metric == "accuracy":
        worse = -worse
    beyond = worse - tolerance  # above 0 where a draw fails
    numbers = torch.arange(1, len(tried) + 1)
    last = ((beyond > ROUNDING) * numbers).amax(1) - 1  # the largest that fails, −1 for none
    places = torch.tensor(tried, dtype=torch.float64).log1p()
    left, right = last.clamp(0, len(tried) - 2), (last + 1).clamp(max=len(tried) - 1)
    fails, holds = (beyond.gather(1, index[:, None])[:, 0] for index in (left, right))
    share = fails / (fails - holds)
    between = (places[left] + share * (places[right] - places[left])).expm1()
    counts = torch.where(last < 0, float(tried[0]), between)
    return torch.where(last == len(tried) - 1, float(tried[-1]), counts)


class TriedMasks(Protocol):
    """Masks of one section that can be evaluated, such as `search.SectionTrials`."""

    candidates: int

    @property
    def losses(self) -> Mapping[int, Tensor]: ...

    def whole(self, count: int) -> None: ...


def count_on_draws(
    masks: TriedMasks, count: int, baseline: Score, tolerance: float
) -> tuple[Tensor, tuple[int, int]]:
    """Compute the count on samples drawn again; masks are evaluated in full where the draws need them.

    Returns:
        [draws], whole numbers, by interpolation where a draw's count lies between two masks; and an interval
        that holds 95 % of them, not narrower than the masks that were tried allow.
    """

    def crossings() -> tuple[list[int], Tensor]:
        tried = sorted(masks.losses)
        scores = [Score(baseline.metric, masks.losses[number], baseline.counts) for number in tried]
        return tried, required_counts(tried, scores, baseline, tolerance)

    masks.whole(max(count - 1, 0))
    masks.whole(count)
    low, high, stride = float(count), float(max(count, 1)), STRIDE
    widen_low = widen_high = True
    while widen_low or widen_high:  # few draws are to lie beyond the masks
        if widen_low:
            low /= stride
            masks.whole(math.floor(low))
        if widen_high:
            high *= stride
            masks.whole(min(math.ceil(high), masks.candidates))
        stride *= STRIDE
        tried, draws = crossings()
        widen_low = tried[0] > 0 and (draws <= tried[0]).double().mean().item() > TAIL_PROBABILITY
        beyond = (draws >= tried[-1]).double().mean().item()
        widen_high = tried[-1] < masks.candidates and beyond > TAIL_PROBABILITY
    while wide := [
        (fails, holds)
        for fails, holds in _end_gaps(tried, draws)
        if fails >= 0 and holds - fails > max(1.0, FINE * holds)
    ]:
        for fails, holds in wide:
            masks.whole((fails + holds) // 2)
        tried, draws = crossings()
    (fails, _), (_, largest) = _end_gaps(tried, draws)
    return _forgiving(draws).ceil(), (fails + 1, largest)


def _end_gaps(tried: list[int], crossings: Tensor) -> list[tuple[int, int]]:
    """(largest that fails, next one) at both ends of 95 % of the draws; −1 where none is known to fail."""
    left_out = int(TAIL_PROBABILITY * len(crossings))
    ends = _forgiving(crossings).sort().values[[left_out, len(crossings) - 1 - left_out]]
    places = torch.searchsorted(torch.tensor(tried, dtype=ends.dtype), ends).tolist()
    return [(tried[place - 1] if place else -1, tried[place]) for place in places]


def _forgiving(crossings: Tensor) -> Tensor:
    return crossings - RELATIVE_ROUNDING * (1 + crossings)
