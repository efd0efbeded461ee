"""Means and scatters of features by group (a class, a position), as sums that merge."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.data.samples import IGNORED_LABEL


@dataclass
class Grouped:
    """Count, mean and scatter Σ (x − mean)² of every feature within every group."""

    counts: Tensor  # [groups]
    means: Tensor  # [groups, features]
    scatters: Tensor  # [groups, features]

    @classmethod
    def of(cls, values: Tensor, groups: Tensor, number: int | None = None) -> "Grouped":
        """Of the rows of values [n, features], each in one of ``number`` groups; group −100 is left out."""
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

    def merge(self, other: "Grouped") -> "Grouped":
        """The moments of both; one may know more groups than the other."""
        number = max(len(self.counts), len(other.counts))
        a, b = self._padded(number), other._padded(number)
        counts = a.counts + b.counts
        weight = (b.counts / counts.clamp_min(1))[:, None]
        shift = b.means - a.means
        scatters = a.scatters + b.scatters + a.counts[:, None] * weight * shift.square()
        return Grouped(counts, a.means + weight * shift, scatters)

    def _padded(self, number: int) -> "Grouped":
        more = (0, 0, 0, number - len(self.counts))
        pad = torch.nn.functional.pad
        return Grouped(pad(self.counts, more[2:]), pad(self.means, more), pad(self.scatters, more))

    @property
    def total(self) -> float:
        return self.counts.sum().item()

    @property
    def mean(self) -> Tensor:  # [features]
        return self.counts @ self.means / max(self.total, 1.0)

    @property
    def between(self) -> Tensor:  # [features]
        """Scatter of the groups' means about the mean of all."""
        return self.counts @ (self.means - self.mean).square()

    @property
    def variance(self) -> Tensor:  # [features]
        """Of all values, whatever their group."""
        return (self.between + self.scatters.sum(0)) / max(self.total, 1.0)

    @property
    def explained(self) -> Tensor:  # [features]
        """η², the share of a feature's variance that the group explains; 0 for a feature that is constant."""
        all_of_it = self.between + self.scatters.sum(0)
        # what rounding leaves of a constant is no variance
        floor = (1e-13 * self.means.abs().amax(0)).square() * self.total if len(self.counts) else all_of_it
        return torch.where(all_of_it > floor, self.between / all_of_it.clamp_min(1e-300), 0.0)

    @property
    def adjusted(self) -> Tensor:  # [features]
        """The same, adjusted for the number of groups, so that many small ones explain nothing by chance."""
        return adjusted_share(self.explained, self.total, int((self.counts > 0).sum()))


def adjusted_share(explained: Tensor, total: float, groups: int) -> Tensor:
    """1 − (1 − η²)(n − 1)/(n − k) for n values in k groups; 0 where every value is a group of its own."""
    if total <= groups:
        return torch.zeros_like(explained)
    return (1 - (1 - explained) * (total - 1) / (total - groups)).clamp(0, 1)
