"""A uniform sample of the places in a stream, the same for every way of cutting it into chunks.

Every place (sample, position) has a random number that belongs to it alone; the places with the smallest
are kept.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Reservoir:
    """Places with the values of all features there, in the order of their random numbers."""

    keys: Tensor  # [R]
    places: Tensor  # [R], sample · 2³¹ + position
    contexts: Tensor  # [R]
    values: Tensor  # [R, features]
    around: Tensor  # [R, features, window]

    def merge(self, other: "Reservoir", size: int) -> "Reservoir":
        both = [torch.cat(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True)]
        return Reservoir(*both).first(size)

    def first(self, size: int) -> "Reservoir":
        order = self.keys.sort(stable=True).indices[:size]
        return Reservoir(*(part[order] for part in vars(self).values()))

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in vars(self).values())


def keys(places: Tensor, seed: int) -> Tensor:  # int64 -> int64
    """A random number for each place: SplitMix64's finaliser over place and seed."""
    with np.errstate(over="ignore"):
        z = places.numpy().astype(np.uint64) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> np.uint64(shift)) ^ np.uint64(0x9E3779B97F4A7C15)) * np.uint64(factor)
        z ^= z >> np.uint64(31)
    return torch.from_numpy((z >> np.uint64(1)).astype(np.int64))
