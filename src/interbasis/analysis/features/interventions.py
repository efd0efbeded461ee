"""Interventions: set a feature to a value, run on, and compare the metrics.

In feature coordinates: f' = f + C⁺[:, j] (value − f̂_j). Everything else the activation holds stays as it
is, dropped directions too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interbasis.analysis.ablation.evaluation import sample_losses
from interbasis.analysis.features import activations
from interbasis.analysis.features.activations import FeatureReader, outputs_from
from interbasis.analysis.features.probes import GroupMoments
from interbasis.base.devices import double, near_sums, sums_device
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.data.batches import Batches, Data
from interbasis.data.samples import IGNORED_LABEL
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network


@dataclass(frozen=True)
class Intervention:
    """Metrics of the original model and of the one whose feature was set."""

    layer: str
    feature: int
    values: tuple[float, ...]
    """Values that the feature was set to: one, or one for each group of classes."""
    accuracy: tuple[float, ...]
    """Before and after; NaN without labels."""
    loss: tuple[float, ...]
    """Cross-entropy before and after; NaN without labels."""
    samples: int
    loss_changes: tuple[float, ...] = ()
    """Change of every sample's mean cross-entropy; empty without labels."""
    outputs: tuple[Tensor, ...] | None = None
    """The model's outputs of every sample before and after, where they were asked for; NaN behind the end of
    samples that are shorter than others."""


def intervene(
    network: Network,
    layer: LayerBasis,
    data: Data,
    feature: int,
    value: float | None = None,
    *,
    groups: Sequence[int] | None = None,
    mean_data: Data | None = None,
    outputs: bool = False,
    progress: Progress = silent,
) -> Intervention:
    """Set one feature of a node layer to ``value``, or to its mean given the true label, and run on.

    Args:
        network: The network.
        layer: The basis of one of its node layers.
        data: (inputs, labels), or a language model's tokens alone, whose labels are the tokens that follow;
            where a value is given, inputs without labels do.
        feature: Index of the feature.
        value: Value that it is set to, at every position; default: its mean given the true label, at the
            positions that have one.
        groups: A group for every class, [1, 1, 0, …], whose mean takes the place of the class's.
        mean_data: Data of the means; default: ``data``.
        outputs: Whether the outputs of every sample are returned.
        progress: Called with (phase, done, total).

    Returns:
        Accuracy and cross-entropy before and after.

    Raises:
        InterbasisError: There is no such feature, or a label has no mean.
    """
    reader = FeatureReader(network, layer)
    if not 0 <= feature < layer.features:
        raise InterbasisError(f"{layer.name!r} has features 0 to {layer.features - 1}, not {feature}")
    batches = means = Batches(data, predicts_next=network.predicts_next)
    labelled = value is None or batches.labelled
    if value is not None:
        targets = torch.tensor([value], dtype=torch.float64)
    else:
        if mean_data is not None:
            means = Batches(mean_data, "mean_data", predicts_next=network.predicts_next)
        moments = _class_moments(reader, feature, means, groups)
        targets = moments.means[:, 0].where(moments.counts > 0, torch.nan)
    scores = torch.zeros(2, 3, dtype=torch.float64)  # labels, right answers and Σ −log p, before and after
    results: list[tuple[Tensor, Tensor]] = []
    changes: list[float] = []
    samples = activations.input_chunks(batches, activations.chunk_size(reader, batches), labelled)
    for _, inputs, labels in batches.tracked(samples, "intervention", progress):
        if labels is None:  # a label 0 for each sample, or for each position of a model that answers at each
            labels = torch.zeros(inputs.shape[:2] if network.predicts_next else len(inputs)).long()
        inputs, labels = inputs.to(network.device), labels.to(network.device)
        group = _groups(labels, groups) if value is None else torch.zeros_like(labels)
        pair = _outputs(reader, feature, inputs, _goals(targets, group))
        untouched, changed = (output[:, -1] if labels.ndim == 1 else output for output in pair)
        if labelled:
            averages: list[Tensor] = []  # of every sample
            for total, output in zip(scores, (untouched, changed), strict=True):
                wrong, counts = sample_losses("accuracy", output, labels)
                nats, _ = sample_losses("cross_entropy", double(output), labels)
                total += torch.stack([counts.sum(), (counts - wrong).sum(), nats.sum()])
                averages.append(nats / counts.clamp_min(1))
            changes += (averages[1] - averages[0]).tolist()
        if outputs:
            results.append((untouched.cpu(), changed.cpu()))
    columns = [  # filled up with NaN to the longest sample
        pad_sequence([sample for part in column for sample in part], True, torch.nan)
        for column in zip(*results, strict=True)
    ]
    count, right, nats = scores.T
    return Intervention(
        layer=layer.name,
        feature=feature,
        values=tuple(targets.tolist()),
        accuracy=tuple((right / count).tolist()),
        loss=tuple((nats / count).tolist()),
        samples=len(batches),
        loss_changes=tuple(changes),
        outputs=tuple(columns) if columns else None,
    )


def _class_moments(
    reader: FeatureReader, feature: int, data: Batches, groups: Sequence[int] | None
) -> GroupMoments:
    """Moments of a feature given the true class, or the group of the class; positions count alike."""
    layer = reader.layer  # which may have thousands of features
    basis = LayerBasis(layer.name, layer.rows([feature]), layer.directions([feature]), constant=False)
    total = GroupMoments.empty(1)
    for chunk in activations.chunks(FeatureReader(reader.network, basis), data, labelled=True):
        assert chunk.labels is not None
        group, values = _groups(chunk.labels, groups), chunk.values
        group = group[:, None] if group.ndim == 1 else group[:, -values.shape[1] :]
        moments = GroupMoments.from_values(values.flatten(0, 1), group.expand(values.shape[:2]).flatten())
        total = moments.merge(total)
    return total


def _goals(targets: Tensor, group: Tensor) -> Tensor:  # [groups], [n] or [n, T] -> the same
    """Values that the feature is set to; NaN where the label is ignored and the feature left alone."""
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


def _groups(labels: Tensor, groups: Sequence[int] | None) -> Tensor:
    """Group of every label: the class, or the group that is named for it."""
    if groups is None:
        return labels.long()
    known = labels.clamp_min(0).long()
    if int(known.max()) >= len(groups):
        raise InterbasisError(
            f"groups has an entry for each of {len(groups)} classes, but there is a label {int(known.max())}"
        )
    by_class = torch.as_tensor(list(groups), device=labels.device)
    return torch.where(labels == IGNORED_LABEL, IGNORED_LABEL, by_class[known])


@torch.no_grad()
def _outputs(reader: FeatureReader, feature: int, inputs: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """The model's outputs [n, T, outputs], untouched and with the feature set."""
    network, layer = reader.network, reader.layer
    f = network.activations_at(reader.index, inputs)  # [n, T, width]
    now = f @ layer.rows([feature])[0].to(f)  # [n, T]
    goal = goal.to(f)
    goal = goal[:, None] if goal.ndim == 1 else goal[:, -f.shape[1] :]
    change = (goal.where(~goal.isnan(), now) - now)[..., None] * layer.directions([feature])[:, 0].to(f)
    return outputs_from(network, reader.index, f), outputs_from(network, reader.index, f + change)
