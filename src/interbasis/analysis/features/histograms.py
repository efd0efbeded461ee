"""Histograms of all features in one pass, without knowing their ranges beforehand.

Bins are [i · 2^e, (i + 1) · 2^e). When a feature outgrows its bins, e grows and neighbours merge, which is
exact: ⌊⌊v/2^e⌋/2⌋ = ⌊v/2^(e+1)⌋. So the result depends on the data alone, not on chunks or their order.
"""

import math

import numpy as np
import torch
from torch import Tensor

from interbasis.analysis.features.activations import Chunk
from interbasis.analysis.features.records import Histogram

BINS = 64
"""Bins per feature, at most; at least half as many where values spread."""


class HistogramSums:
    """Collects the histograms of all features, chunk by chunk."""

    def __init__(self, bins: int = BINS):
        self.bins = bins
        self.low: Tensor | None = None
        self.high: Tensor | None = None
        self.exponents: list[int] = []
        self.first: list[int] = []
        self.counts: list[np.ndarray] = []

    def add(self, chunk: Chunk) -> None:
        values = chunk.values.flatten(0, 1)  # [N, features]
        low, high = values.aminmax(dim=0)
        if self.low is None or self.high is None:
            self.low, self.high = low, high
            self.exponents = [self._exponent(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
            self.first = [0] * len(low)
            self.counts = [np.zeros(0, dtype=np.int64) for _ in self.first]
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        columns = values.T.contiguous().numpy()
        for j, (a, b) in enumerate(zip(self.low.tolist(), self.high.tolist(), strict=True)):
            self._widen(j, self._exponent(a, b))
            self._count(j, columns[j], a, b)

    def _exponent(self, low: float, high: float) -> int:
        """The smallest e whose bins hold the range; for a constant, bins a millionth of its size."""
        largest = max(abs(low), abs(high))
        e = (math.frexp(largest)[1] if largest else 0) - 20
        while math.floor(high / 2.0**e) - math.floor(low / 2.0**e) >= self.bins:
            e += 1
        return e

    def _widen(self, j: int, exponent: int) -> None:
        """Merge neighbouring bins until they are 2^exponent wide."""
        while self.exponents[j] < exponent:
            first, counts = self.first[j], self.counts[j]
            if len(counts):
                counts = np.pad(counts, (first % 2, (first + len(counts)) % 2))
                self.first[j], self.counts[j] = first // 2, counts.reshape(-1, 2).sum(1)
            self.exponents[j] += 1

    def _count(self, j: int, column: np.ndarray, low: float, high: float) -> None:
        width = 2.0 ** self.exponents[j]
        first, last = math.floor(low / width), math.floor(high / width)
        counts = np.bincount((np.floor(column / width) - first).astype(np.int64), minlength=last - first + 1)
        if len(self.counts[j]):
            start = self.first[j] - first
            counts[start : start + len(self.counts[j])] += self.counts[j]
        self.first[j], self.counts[j] = first, counts

    def state(self) -> dict[str, Tensor]:
        """All of it, to go on from; counts of all features in a row."""
        if self.low is None or self.high is None:
            return {}
        return {
            "low": self.low,
            "high": self.high,
            "exponents": torch.tensor(self.exponents),
            "first": torch.tensor(self.first),
            "lengths": torch.tensor([len(counts) for counts in self.counts]),
            "counts": torch.from_numpy(np.concatenate(self.counts)),
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up a state."""
        if not tensors:
            return
        self.low, self.high = tensors["low"], tensors["high"]
        self.exponents, self.first = tensors["exponents"].tolist(), tensors["first"].tolist()
        self.counts = [part.numpy() for part in tensors["counts"].split(tensors["lengths"].tolist())]

    def result(self) -> list[Histogram]:
        return [
            Histogram(
                edges=tuple((first + i) * 2.0**e for i in range(len(counts) + 1)),
                counts=tuple(int(c) for c in counts),
            )
            for first, e, counts in zip(self.first, self.exponents, self.counts, strict=True)
        ]
