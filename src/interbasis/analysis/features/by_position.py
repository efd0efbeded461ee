"""Positional features of sequence models: how much of a feature is where it stands."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.features.activations import Chunk, Source, chunks
from interbasis.analysis.features.moments import Grouped
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.data.batches import Data


@dataclass(frozen=True, eq=False)
class Positional:
    """Features by position."""

    means: Tensor
    """Mean activation [positions, features]."""
    share: Tensor
    """Share of each feature's variance that position explains, adjusted for the number of positions,
    [features]; 0 for a constant."""


class PositionSums:
    """Collects moments by position, chunk by chunk."""

    def __init__(self) -> None:
        self.moments: Grouped | None = None

    def add(self, chunk: Chunk) -> None:
        n, S, _ = chunk.values.shape
        moments = Grouped.of(chunk.values.flatten(0, 1), torch.arange(S).repeat(n), S)
        self.moments = moments if self.moments is None else self.moments.merge(moments)

    def result(self) -> Positional:
        if self.moments is None:
            raise InterbasisError("there are no samples to take positions from")
        return Positional(self.moments.means, self.moments.adjusted)


def positions(source: Source, data: Data, progress: Progress = silent) -> Positional:
    """Mean activation of every feature per position, and the share of variance explained by position.

    The share is adjusted for the number of positions, 1 − (1 − η²)(n − 1)/(n − k).

    Args:
        source: `of(network, layer)`, or a function from inputs to values.
        data: Inputs.
        progress: Called with (phase, done, total).

    Returns:
        Means [positions, features] and shares [features].
    """
    sums = PositionSums()
    for chunk in chunks(source, data, progress=progress, phase="positions"):
        sums.add(chunk)
    return sums.result()
