"""Bootstrap: variation of a number over samples drawn again from those that were evaluated.

All numbers of one comparison are resampled with the same draws, so differences between them are paired.
"""

from collections.abc import Iterator, Sequence

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
