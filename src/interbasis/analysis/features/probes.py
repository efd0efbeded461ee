"""What a single feature says about a label: AUROC, explained variance, R². All features at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.features.activations import Source, chunks
from interbasis.analysis.features.moments import Grouped
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.data.batches import Data
from interbasis.data.samples import IGNORED_LABEL

BLOCK = 2**22
"""Values that are ranked at a time."""


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
    block = max(1, BLOCK // len(values))
    sums = torch.cat([truth.T @ ranks(some) for some in values.split(block, dim=1)], dim=1)  # [A, features]
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
    return Grouped.of(values, labels).explained


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
    """What every feature of a layer says about the classes, or about a group of them."""

    classes: tuple[int, ...]
    """The classes that occur."""
    area: Tensor  # AUROC [classes, features], of each class against the others
    moments: Grouped
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
        source: `of(network, layer)`, or a function from inputs to values.
        data: (inputs, labels [samples]).
        positive: Classes that have an attribute in common (the animals of CIFAR-10, say).
        progress: Called with (phase, done, total).

    Returns:
        AUROC and explained variance of every feature.

    Raises:
        InterbasisError: Labels are missing, or there is only one class.
    """
    parts_of_data = []
    for chunk in chunks(source, data, labelled=True, progress=progress):
        assert chunk.labels is not None
        if chunk.labels.ndim != 1:
            raise InterbasisError(
                f"probes are for one label per sample, received labels of shape {list(chunk.labels.shape)}"
            )
        parts_of_data.append((chunk.values[:, -1], chunk.labels))
    values, labels = (torch.cat(parts) for parts in zip(*parts_of_data, strict=True))
    values, labels = values[labels != IGNORED_LABEL], labels[labels != IGNORED_LABEL].long()
    classes = labels.unique()
    if len(classes) < 2:
        raise InterbasisError("probes need samples of at least two classes")
    area = auroc(values, labels[:, None] == classes)
    moments = Grouped.of(values, labels)
    if positive is None:
        return Probe(tuple(classes.tolist()), area, moments)
    truth = torch.isin(labels, torch.tensor(list(positive)))
    return Probe(
        tuple(classes.tolist()), area, moments, auroc(values, truth), explained_variance(values, truth.long())
    )
