"""Random signs that belong to a sample, not to a batch.

Stochastic sources need φ ∈ {−1, +1} per (sample, output position, source). They come from a counter-based
generator (Philox) whose counter is the sample's index in the data, so a sample has the same signs however
the data are batched or split over machines.
"""

import numpy as np
import torch
from torch import Tensor

BITS_PER_COUNTER = 256


def random_signs(key: tuple[int, int], first: int, samples: int, per_sample: int) -> Tensor:
    """Signs [samples, per_sample] of the samples with indices first … first + samples − 1, as ±1.

    The key is (seed, stream): different streams of one seed are independent.
    """
    counters = -(-per_sample // BITS_PER_COUNTER)
    generator = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=first * counters)
    raw = generator.random_raw(samples * counters * 4).astype("<u8").view(np.uint8)
    bits = np.unpackbits(raw.reshape(samples, -1), axis=1, count=per_sample)
    return torch.from_numpy(2.0 * bits - 1.0)
