"""Probes of single features for a label: AUROC, explained variance, R², for all features at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.analysis.features.activations import Source, chunks
from interbasis.analysis.features.moments import GroupMoments
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.data.batches import Data
from interbasis.data.samples import IGNORED_LABEL

MAX_RANKED_VALUES = 2**22
"""Values that are ranked at once."""


def auroc(values: Tensor, positive: Tensor) -> Tensor:
    """AUROC of every feature as a classifier of binary attributes, from ranks with ties counted half.

        AUROC = (Σ ranks of positives − P(P + 1)/2) / (P · N).

    The sign of a feature is arbitrary: 0.1 separates as well as 0.9 (see `separation`).

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
    truth = (positive != 0).double()
    truth = truth[:, None] if truth.ndim == 1 else truth  # [n, A]
    positives = truth.sum(0)  # [A]
    negatives = len(truth) - positives
    if (positives == 0).any() or (negatives == 0).any():
        raise InterbasisError("AUROC needs at least one sample with the attribute and one without it")
    block = max(1, MAX_RANKED_VALUES // len(values))
    sums = torch.cat(
        [truth.T @ ranks(columns) for columns in values.split(block, dim=1)], dim=1
    )  # [A, features]
    area = (sums - (positives * (positives + 1) / 2)[:, None]) / (positives * negatives)[:, None]
    return area[0] if positive.ndim == 1 else area


def ranks(values: Tensor) -> Tensor:  # [n, features] -> [n, features]
    """Ranks from 1 to n in every column; equal values share the middle of theirs."""
    ordered, order = values.T.contiguous().sort(dim=1)  # [features, n]
    middle = torch.searchsorted(ordered, ordered) + torch.searchsorted(ordered, ordered, right=True) + 1
    return torch.empty_like(ordered).scatter_(1, order, middle.double() / 2).T


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
    return replace(
        probed,
        attribute_area=auroc(values, truth),
        attribute_explained=explained_variance(values, truth.long()),
    )


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
