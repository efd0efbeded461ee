"""Set a feature to a value, run on, and see what becomes of the metric.

In feature coordinates: f' = f + C⁺[:, j] (value − f̂_j). Everything else the activation holds stays as it
is, dropped directions too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from interbasis.analysis.features.activations import Features, chunk_size, of, values_of
from interbasis.analysis.features.moments import Grouped
from interbasis.base.devices import double, near_sums, sums_device
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.data.batches import Batches, Data
from interbasis.data.samples import IGNORED_LABEL
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network


@dataclass(frozen=True)
class Intervention:
    """The metrics of the untouched model and of the one whose feature was set."""

    layer: str
    feature: int
    values: tuple[float, ...]
    """What the feature was set to: one value, or one for each group of classes."""
    accuracy: tuple[float, float]
    """Before and after; NaN without labels."""
    loss: tuple[float, float]
    """Cross-entropy before and after; NaN without labels."""
    samples: int
    outputs: tuple[Tensor, Tensor] | None = None
    """The model's outputs of every sample before and after, where they were asked for; NaN behind the end of
    samples that are shorter than others."""


class InterventionOptions(TypedDict, total=False):
    """Options of `intervene`."""

    groups: Sequence[int] | None
    mean_data: Data | None
    outputs: bool
    progress: Progress


def intervene(
    network: Network,
    layer: LayerBasis,
    data: Data,
    feature: int,
    value: float | None = None,
    **options: Unpack[InterventionOptions],
) -> Intervention:
    """Set one feature of a node layer to ``value``, or to its mean given the true label, and run on.

    Args:
        network: The network.
        layer: The basis of one of its node layers.
        data: (inputs, labels), or a language model's tokens alone, whose labels are the tokens that follow;
            where a value is given, inputs without labels do.
        feature: Index of the feature.
        value: What it is set to, at every position; default: its mean given the true label, at the positions
            that have one.
        **options: ``groups`` gives every class a group, and the mean is the group's: [1, 1, 0, …];
            ``mean_data`` are the data of the means (default: ``data``); ``outputs`` keeps the outputs of
            every sample; ``progress`` is told how far it is.

    Returns:
        Accuracy and cross-entropy before and after.

    Raises:
        InterbasisError: There is no such feature, or a label has no mean.
    """
    groups, mean_data = options.get("groups"), options.get("mean_data")
    progress = options.get("progress", silent)
    features = of(network, layer)
    if not 0 <= feature < layer.features:
        raise InterbasisError(f"{layer.name!r} has features 0 to {layer.features - 1}, not {feature}")
    batches = Batches(data, predicts_next=network.predicts_next)
    labelled = value is None or batches.labelled
    targets = torch.tensor([0.0 if value is None else value], dtype=torch.float64)
    if value is None:
        means = (
            batches
            if mean_data is None
            else Batches(mean_data, "mean_data", predicts_next=network.predicts_next)
        )
        moments = class_means(_only(features, feature), means, groups)
        targets = moments.means[:, 0].where(moments.counts > 0, torch.nan)
    before, after = _Score(), _Score()
    kept: list[tuple[Tensor, Tensor]] = []
    size = chunk_size(features, batches)
    chunks = batches.labelled_chunks(size) if labelled else _unlabelled(batches, size, network)
    for _, inputs, labels in batches.tracked(chunks, "intervention", progress):
        inputs, labels = inputs.to(network.device), labels.to(network.device)
        group = _group(labels, groups) if value is None else torch.zeros_like(labels)
        untouched, changed = _outputs(features, feature, inputs, labels, _goal(targets, group))
        if labelled:
            before.add(untouched, labels)
            after.add(changed, labels)
        if options.get("outputs"):
            kept.append((untouched.cpu(), changed.cpu()))
    return Intervention(
        layer.name, feature, tuple(targets.tolist()),
        (before.accuracy, after.accuracy), (before.loss, after.loss), len(batches),
        (_joined([pair[0] for pair in kept]), _joined([pair[1] for pair in kept])) if kept else None,
    )  # fmt: skip


def _joined(parts: Sequence[Tensor]) -> Tensor:  # [n, outputs] or [n, T, outputs] each, T may differ
    """All samples together, filled up with NaN to the longest."""
    if parts[0].ndim == 2:
        return torch.cat(list(parts))
    longest = max(part.shape[1] for part in parts)
    pad = torch.nn.functional.pad
    return torch.cat([pad(part, (0, 0, 0, longest - part.shape[1]), value=torch.nan) for part in parts])


def _unlabelled(batches: Batches, size: int, network: Network) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Chunks with a label 0 for each sample, or for each position of a model that answers at every one."""
    for first, inputs in batches.chunks(size):
        yield first, inputs, torch.zeros(inputs.shape[:2] if network.predicts_next else len(inputs)).long()


def _only(features: Features, feature: int) -> Features:
    """A source of one feature: a layer may have thousands."""
    reads, writes = _directions(features.layer, feature)
    one = LayerBasis(features.layer.name, reads[None], writes[:, None], constant=False)
    return Features(features.network, one, features.index)


def _directions(layer: LayerBasis, feature: int) -> tuple[Tensor, Tensor]:
    """C[j] and C⁺[:, j], [width] each: what a feature reads, and what one unit of it is."""
    if layer.identity:
        unit = torch.zeros(layer.width, dtype=torch.float64)
        unit[feature] = 1
        return unit, unit
    return layer.transform[feature], layer.inverse[:, feature]


def class_means(features: Features, data: Batches, groups: Sequence[int] | None = None) -> Grouped:
    """Moments of every feature given the true class, or the group of the class; positions count alike."""
    total: Grouped | None = None
    for first, inputs, labels in data.labelled_chunks(chunk_size(features, data)):
        values = values_of(features, inputs, data.name, first)
        group = _group(labels, groups)
        group = group[:, None] if group.ndim == 1 else group[:, -values.shape[1] :]
        moments = Grouped.of(values.flatten(0, 1), group.expand(values.shape[:2]).flatten())
        total = moments if total is None else total.merge(moments)
    assert total is not None
    return total


def _goal(targets: Tensor, group: Tensor) -> Tensor:  # [groups], [n] or [n, T] -> the same
    """What the feature is set to; NaN where the label is ignored and the feature left alone."""
    known = group != IGNORED_LABEL
    unknown = group[known & (group >= len(targets))]
    goal = targets.to(sums_device(group.device))[near_sums(group.where(known, 0).clamp(max=len(targets) - 1))]
    if len(unknown) or goal[known].isnan().any():
        missing = unknown[0] if len(unknown) else group[known & goal.isnan()][0]
        raise InterbasisError(
            f"there is no mean for label or group {int(missing)}: it does not occur in the data that the "
            "means were taken from"
        )
    return goal.where(known, torch.nan)


def _group(labels: Tensor, groups: Sequence[int] | None) -> Tensor:
    if groups is None:
        return labels.long()
    known = labels.clamp_min(0).long()
    if int(known.max()) >= len(groups):
        raise InterbasisError(
            f"groups has an entry for each of {len(groups)} classes, but there is a label {int(known.max())}"
        )
    of_class = torch.as_tensor(list(groups), device=labels.device)
    return torch.where(labels == IGNORED_LABEL, IGNORED_LABEL, of_class[known])


@torch.no_grad()
def _outputs(
    features: Features, feature: int, inputs: Tensor, labels: Tensor, goal: Tensor
) -> tuple[Tensor, Tensor]:
    """The model's outputs, untouched and with the feature set."""
    network, layer = features.network, features.layer
    f = network.activations_at(features.index, inputs)  # [n, T, width]
    reads, writes = (direction.to(f) for direction in _directions(layer, feature))
    now = f @ reads  # [n, T]
    goal = goal.to(f)
    goal = goal[:, None] if goal.ndim == 1 else goal[:, -f.shape[1] :]
    change = (goal.where(~goal.isnan(), now) - now)[..., None] * writes
    untouched = _run_on(network, features.index, f, labels)
    return untouched, _run_on(network, features.index, f + change, labels)


def _run_on(network: Network, index: int, f: Tensor, labels: Tensor) -> Tensor:
    """The model's output from the activations of a node layer: [n, outputs], or [n, T, outputs]."""
    chain = [*network.sections[index:], *network.tail]
    for section in chain:
        f = section(f)
    output = f[..., network.output_layer.first_coordinate :]
    return output[:, -1] if labels.ndim == 1 else output


class _Score:
    """Accuracy and cross-entropy as running sums; label −100 is ignored."""

    def __init__(self) -> None:
        self.count, self.right, self.nats = 0, 0, 0.0

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        outputs = outputs.flatten(0, -2)
        labels = labels.flatten().long()
        known = labels != IGNORED_LABEL
        self.count += int(known.sum())
        self.right += int((outputs.argmax(-1) == labels)[known].sum())
        self.nats += cross_entropy(
            double(outputs), near_sums(labels), ignore_index=IGNORED_LABEL, reduction="sum"
        ).item()

    @property
    def accuracy(self) -> float:
        return self.right / self.count if self.count else float("nan")

    @property
    def loss(self) -> float:
        return self.nats / self.count if self.count else float("nan")
