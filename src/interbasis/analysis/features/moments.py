"""Means and scatters of features by group (a class, a position), as sums that merge."""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from interbasis.analysis.features.activations import Source, chunks
from interbasis.base.progress import Progress, silent
from interbasis.data.batches import Data
from interbasis.data.samples import IGNORED_LABEL


@dataclass
class GroupMoments:
    """Count, mean and scatter Σ (x − mean)² of every feature within every group."""

    counts: Tensor  # [groups]
    means: Tensor  # [groups, features]
    scatters: Tensor  # [groups, features]

    @classmethod
    def from_values(cls, values: Tensor, groups: Tensor, number: int | None = None) -> "GroupMoments":
        """Moments of the rows of values [n, features] in ``number`` groups [n]; group −100 is left out."""
        known = groups != IGNORED_LABEL
        if not known.all():
            values, groups = values[known], groups[known]
        number = int(groups.max()) + 1 if number is None and len(groups) else number or 0
        groups, values = groups.long(), values.double()
        counts = torch.bincount(groups, minlength=number).double()
        shape = (number, values.shape[1])
        means = values.new_zeros(shape).index_add_(0, groups, values) / counts.clamp_min(1)[:, None]
        scatters = values.new_zeros(shape).index_add_(0, groups, (values - means[groups]).square())
        return cls(counts, means, scatters)

    @classmethod
    def by_position(cls, values: Tensor) -> "GroupMoments":
        """Moments of values [n, S, features] with their position as the group."""
        n, S, _ = values.shape
        return cls.from_values(values.flatten(0, 1), torch.arange(S).repeat(n), S)

    @classmethod
    def empty(cls, features: int) -> "GroupMoments":
        """Moments of no data."""
        return cls.from_values(torch.zeros(0, features), torch.zeros(0))

    def merge(self, earlier: "GroupMoments") -> "GroupMoments":
        """Moments of earlier data and these; one may know more groups than the other."""
        number = max(len(self.counts), len(earlier.counts))
        a, b = earlier._padded(number), self._padded(number)
        counts = a.counts + b.counts
        weight = (b.counts / counts.clamp_min(1))[:, None]
        shift = b.means - a.means
        scatters = a.scatters + b.scatters + a.counts[:, None] * weight * shift.square()
        return GroupMoments(counts, a.means + weight * shift, scatters)

    def _padded(self, number: int) -> "GroupMoments":
        more = (0, 0, 0, number - len(self.counts))
        pad = torch.nn.functional.pad
        return GroupMoments(pad(self.counts, more[2:]), pad(self.means, more), pad(self.scatters, more))

    @property
    def total(self) -> float:
        return self.counts.sum().item()

    @property
    def between(self) -> Tensor:  # [features]
        """Scatter of the groups' means about the mean of all values."""
        mean = self.counts @ self.means / max(self.total, 1.0)
        return self.counts @ (self.means - mean).square()

    @property
    def explained(self) -> Tensor:  # [features]
        """η², the share of a feature's variance that the group explains; 0 for a feature that is constant."""
        scatter = self.between + self.scatters.sum(0)
        # rounding of a constant is no variance
        floor = (1e-13 * self.means.abs().amax(0)).square() * self.total if len(self.counts) else scatter
        return torch.where(scatter > floor, self.between / scatter.clamp_min(1e-300), 0.0)

    @property
    def adjusted_explained(self) -> Tensor:  # [features]
        """η² adjusted for the number of groups, so that many small ones explain nothing by chance."""
        return adjusted_share(self.explained, self.total, int((self.counts > 0).sum()))


def adjusted_share(explained: Tensor, total: float, groups: int) -> Tensor:
    """1 − (1 − η²)(n − 1)/(n − k) for n values in k groups; 0 where every value has its own group."""
    if total <= groups:
        return torch.zeros_like(explained)
    return (1 - (1 - explained) * (total - 1) / (total - groups)).clamp(0, 1)


def positions(source: Source, data: Data, progress: Progress = silent) -> GroupMoments:
    """Mean activation of every feature per position, and the share of variance explained by position.

    The share is adjusted for the number of positions, 1 − (1 − η²)(n − 1)/(n − k).

    Args:
        source: A `FeatureReader`, or a function from inputs to values.
        data: Inputs.
        progress: Called with (phase, done, total).

    Returns:
        Moments by position: means [positions, features] and shares ``adjusted_explained`` [features].

    Raises:
        InterbasisError: There are no samples.
    """
    parts = chunks(source, data, progress=progress, phase="positions")
    moments = (GroupMoments.by_position(chunk.values) for chunk in parts)
    return reduce(lambda earlier, later: later.merge(earlier), moments)
