"""How far a number would move with other data: resampling the samples that were evaluated.

All numbers of one comparison are resampled with the same draws, so differences between them are paired.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from interbasis.metrics import Score

BLOCK = 100
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
    for start in range(0, draws, BLOCK):
        chosen = torch.randint(samples, (min(BLOCK, draws - start), samples), generator=generator)
        weights = torch.zeros(chosen.shape, dtype=torch.float64)
        weights.scatter_add_(1, chosen, torch.ones_like(weights))
        yield torch.stack([score.resampled(weights) for score in scores], dim=1)
