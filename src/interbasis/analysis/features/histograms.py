"""Histograms of all features in one pass, without knowing their ranges beforehand.

Bins are [i · 2^e, (i + 1) · 2^e). When a feature outgrows its bins, e grows and neighbours merge, which is
exact: ⌊⌊v/2^e⌋/2⌋ = ⌊v/2^(e+1)⌋. So the result depends on the data alone, not on chunks or their order.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from interbasis.analysis.features.activations import FeatureChunk
from interbasis.analysis.features.records import Histogram

BINS = 64
"""Bins per feature, at most; at least half as many where values spread."""


class HistogramSums:
    """Collects the histograms of all features, chunk by chunk."""

    def __init__(self) -> None:
        self.low = self.high = np.zeros(0)  # [features]
        self.counts = np.zeros((0, BINS), dtype=np.int64)  # [features, bins] from the bin of ``low`` on

    def add(self, chunk: FeatureChunk) -> None:
        values = chunk.values.flatten(0, 1).numpy()  # [N, features]
        low, high, features = values.min(0), values.max(0), values.shape[1]
        if not len(self.low):
            self.low, self.high, self.counts = low, high, np.zeros((features, BINS), dtype=np.int64)
        before, first, _ = self._bins()
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        exponents, start, _ = self._bins()
        merged = (first[:, None] + np.arange(BINS)) >> (exponents - before)[:, None]
        added = np.floor(np.ldexp(values, -exponents)).astype(np.int64) - start
        bins = np.concatenate([(merged - start[:, None]).clip(0, BINS - 1).T, added])  # [BINS + N, features]
        weights = np.concatenate([self.counts.T, np.ones_like(added)])
        flat = (bins + BINS * np.arange(features)).ravel()
        counts = np.bincount(flat, weights.ravel(), BINS * features)
        self.counts = counts.astype(np.int64).reshape(features, BINS)

    def _bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(e, first bin, number of bins) of every feature, with the smallest e whose bins hold the range.

        For a constant, bins are a millionth of its size.
        """
        exponents = np.frexp(np.maximum(np.abs(self.low), np.abs(self.high)))[1].astype(np.int64) - 20
        while True:
            first, last = (np.floor(np.ldexp(x, -exponents)).astype(np.int64) for x in (self.low, self.high))
            wide = last - first >= BINS
            if not wide.any():
                return exponents, first, last - first + 1
            exponents += wide

    def state(self) -> dict[str, Tensor]:
        """Tensors to resume from."""
        return {name: torch.from_numpy(array) for name, array in vars(self).items() if len(array)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        vars(self).update({name: tensor.numpy() for name, tensor in tensors.items()})

    def result(self) -> list[Histogram]:
        rows = zip(*(part.tolist() for part in self._bins()), self.counts.tolist(), strict=True)
        return [
            Histogram(
                edges=tuple((first + i) * 2.0**e for i in range(number + 1)), counts=tuple(counts[:number])
            )
            for e, first, number, counts in rows
        ]
