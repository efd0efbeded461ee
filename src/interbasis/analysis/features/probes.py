"""Dependence of single features on a label or a position: moments by group, AUROC, R², for all at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from scipy.stats import rankdata
from torch import Tensor

from interbasis.analysis.features.activations import Source, chunks
from interbasis.base.errors import InterbasisError
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


MAX_DISTINCT_VALUES = 2**40
"""Values between 0 and the largest that are told apart."""
MAX_RANKED_VALUES = 2**22
"""Values that are ranked at once."""


def auroc(values: Tensor, positive: Tensor) -> Tensor:
    """AUROC of every feature as a classifier of binary attributes, from ranks with ties counted half.

        AUROC = (Σ ranks of positives − P(P + 1)/2) / (P · N).

    The sign of a feature is arbitrary: 0.1 separates as well as 0.9 (see `separation`). Values that differ by
    less than 1e-12 of the feature's largest are equal: rounding separates no classes.

    Args:
        values: [samples, features].
        positive: Truth values [samples], or [samples, attributes].

    Returns:
        [features], or [attributes, features].

    Raises:
        InterbasisError: Shapes do not match, values are not finite, or an attribute has one value only.
    """
    values, positive = torch.as_tensor(values).double(), torch.as_tensor(positive)
    if values.ndim != 2 or positive.ndim not in (1, 2) or len(values) != len(positive):
        raise InterbasisError(
            "expected values [samples, features] and one truth value for each sample, received shapes "
            f"{list(values.shape)} and {list(positive.shape)}"
        )
    if not values.isfinite().all():
        raise InterbasisError("AUROC is for finite values, but there are NaN or infinite ones")
    largest = values.abs().amax(0).clamp_min(torch.finfo(torch.float64).tiny)
    values = (values / largest * MAX_DISTINCT_VALUES).round()
    truth = (positive != 0).double()
    truth = truth[:, None] if truth.ndim == 1 else truth  # [n, A]
    positives = truth.sum(0)  # [A]
    negatives = len(truth) - positives
    if (positives == 0).any() or (negatives == 0).any():
        raise InterbasisError("AUROC needs at least one sample with the attribute and one without it")
    blocks = values.split(max(1, MAX_RANKED_VALUES // len(values)), dim=1)
    ranks = (torch.from_numpy(rankdata(columns.cpu().numpy(), axis=0)) for columns in blocks)
    sums = torch.cat([truth.T @ rank.to(truth) for rank in ranks], dim=1)  # [A, features]
    area = (sums - (positives * (positives + 1) / 2)[:, None]) / (positives * negatives)[:, None]
    return area[0] if positive.ndim == 1 else area


def separation(area: Tensor) -> Tensor:
    """max(AUROC, 1 − AUROC): how well a feature separates, whatever its sign."""
    return torch.maximum(area, 1 - area)


def explained_variance(values: Tensor, labels: Tensor) -> Tensor:  # [n, features], [n] -> [features]
    """η²: the share of every feature's variance that a label explains.

    Args:
        values: [samples, features].
        labels: [samples].

    Returns:
        [features].
    """
    _check_rows(values, labels)
    return GroupMoments.from_values(values, labels).explained


def r_squared(values: Tensor, attribute: Tensor) -> Tensor:  # [n, features], [n] -> [features]
    """R² of every feature and a scalar attribute, their squared correlation; 0 where either is constant.

    Args:
        values: [samples, features].
        attribute: [samples].

    Returns:
        [features].
    """
    _check_rows(values, attribute)
    x, y = values.double(), attribute.double()
    x, y = x - x.mean(0), y - y.mean()
    power = x.square().sum(0) * y.square().sum()
    constant = x.square().mean(0) <= (1e-13 * values.abs().amax(0)).square()
    return torch.where(constant | (power <= 0), 0.0, (y @ x).square() / power.clamp_min(1e-300))


def _check_rows(values: Tensor, labels: Tensor) -> None:
    if values.ndim != 2 or labels.ndim != 1 or len(values) != len(labels) or not len(labels):
        raise InterbasisError(
            "expected values [samples, features] and one label for each sample, received shapes "
            f"{list(values.shape)} and {list(labels.shape)}"
        )


def best(scores: Tensor, k: int = 5) -> list[tuple[int, float]]:  # [features]
    """The features with the largest scores.

    Args:
        scores: [features].
        k: How many.

    Returns:
        (index, score) of each, the largest first.
    """
    top = scores.sort(descending=True, stable=True)
    return list(zip(top.indices[:k].tolist(), top.values[:k].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Probe:
    """AUROC and explained variance of every feature of a layer for the classes, or for a group of them."""

    classes: tuple[int, ...]
    """The classes that occur."""
    area: Tensor  # AUROC [classes, features], of each class against the others
    moments: GroupMoments
    """Means and scatters by class."""
    attribute_area: Tensor | None = None
    """AUROC [features] of the classes that were named together against the others."""
    attribute_explained: Tensor | None = None
    """η² [features] of that attribute."""

    @property
    def explained(self) -> Tensor:  # [features]
        """η² of the class."""
        return self.moments.explained


def probe(
    source: Source, data: Data, positive: Sequence[int] | None = None, progress: Progress = silent
) -> Probe:
    """Probe all features of a layer with labelled data, at a sample's last position.

    All values are held at once, 8 bytes for each sample and feature.

    Args:
        source: A `FeatureReader`, or a function from inputs to values.
        data: (inputs, labels [samples]).
        positive: Classes that have an attribute in common (the animals of CIFAR-10, say).
        progress: Called with (phase, done, total).

    Returns:
        AUROC and explained variance of every feature.

    Raises:
        InterbasisError: Labels are missing, or there is only one class.
    """
    parts = []
    for chunk in chunks(source, data, labelled=True, progress=progress):
        assert chunk.labels is not None
        if chunk.labels.ndim != 1:
            raise InterbasisError(
                f"probes are for one label per sample, received labels of shape {list(chunk.labels.shape)}"
            )
        parts.append((chunk.values[:, -1], chunk.labels))
    values, labels = known_labels(parts)
    areas = class_areas(values, labels)
    if areas is None:
        raise InterbasisError("probes need samples of at least two classes")
    probed = Probe(*areas, GroupMoments.from_values(values, labels))
    if positive is None:
        return probed
    truth = torch.isin(labels, torch.tensor(list(positive)))
    explained = explained_variance(values, truth.long())
    return replace(probed, attribute_area=auroc(values, truth), attribute_explained=explained)


def known_labels(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Values [n, features] and labels [n] of all parts, without the samples whose label is ignored."""
    values, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return values[labels != IGNORED_LABEL], labels[labels != IGNORED_LABEL].long()


def class_areas(values: Tensor, labels: Tensor) -> tuple[tuple[int, ...], Tensor] | None:
    """(classes, AUROC [classes, features]) of each class against the others; None for fewer than two."""
    classes = labels.unique()
    if len(classes) < 2:
        return None
    return tuple(classes.tolist()), auroc(values, labels[:, None] == classes)
