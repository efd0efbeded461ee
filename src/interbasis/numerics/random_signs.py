"""Random signs that belong to a sample, not to a batch.

Stochastic sources need φ ∈ {−1, +1} per (sample, output position, source). They come from a counter-based
generator (Philox) whose counter is the sample's index in the data, so a sample has the same signs however
the data are batched or split over machines.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.records import Group

BITS_PER_COUNTER = 256

PURPOSES = ("jacobian", "edges", "queries", "other queries", "edge positions", "mean effects")
"""Their order decides the random numbers."""


@dataclass(frozen=True)
class Sources:
    """Stochastic sources for edges: squares of signed sums over groups instead of single tokens.

    ``group`` tokens are summed with ``count`` independent sets of signs; "positions" makes a group of every
    sample's output positions, as in the paper. From two sets on, their scatter is an unbiased estimate of
    the error; with one set it is estimated from Var X ≈ ⅔ E[X²], right where no token dominates its group.

    ``positions`` looks at so many of a sample's output positions only, one at random in each of as many equal
    stretches: unbiased too. The error of signed sums is then bounded, not estimated, by Var X ≤ E[X²]; that
    of squares in closed form comes from two halves of the positions (`lib/edges.py`).
    """

    group: Group = "positions"
    count: int = 2
    seed: int = 0
    positions: int | None = None

    def __post_init__(self) -> None:
        if self.positions is not None and self.positions < 1:
            raise InterbasisError(
                f"stochastic sources: expected at least 1 position, received {self.positions}"
            )
        if self.count < 1 or (self.group != "positions" and self.group < 1):
            raise InterbasisError(
                f"stochastic sources: expected a group and a count of at least 1, received "
                f"{self.group} and {self.count}"
            )


def random_signs(
    key: tuple[str, int, int], first: int, samples: int, per_sample: int, most: int | None = None
) -> Tensor:
    """Signs [samples, per_sample] of the samples with indices first … first + samples − 1, as ±1.

    The key is (purpose, seed, number of the section); different keys give independent signs. ``most`` is what
    the longest sample needs, where samples differ in length.
    """
    raw = _random_words(key, first, samples, -(-(most or per_sample) // BITS_PER_COUNTER))
    bits = np.unpackbits(raw.astype("<u8").view(np.uint8), axis=1, count=per_sample)
    return torch.from_numpy(2.0 * bits - 1.0)


def random_positions(
    key: tuple[str, int, int], first: int, samples: int, per_sample: int, positions: int
) -> Tensor:
    """Positions [samples, per_sample] out of so many, one in each of per_sample equal stretches, in order.

    By sample as the signs are, with a key like theirs. Samples that have fewer positions give them all.
    """
    raw = _random_words(key, first, samples, -(-per_sample // 4))
    per_sample = min(per_sample, positions)
    within = torch.from_numpy((raw[:, :per_sample] >> np.uint64(11)) * 2.0**-53)  # [0, 1)
    stretches = torch.arange(per_sample) + within
    return (stretches * positions / per_sample).long().clamp_max(positions - 1)


def _random_words(key: tuple[str, int, int], first: int, samples: int, counters: int) -> np.ndarray:
    """Random 64-bit words [samples, 4 · counters] of a key, so many counters of the generator per sample."""
    purpose, seed, section = key
    words = np.array([seed, ((1 + PURPOSES.index(purpose)) << 32) + section], dtype=np.uint64)
    generator = np.random.Philox(key=words, counter=first * counters)
    return generator.random_raw(samples * counters * 4).reshape(samples, -1)
