"""How well a model does, as a sum over tokens of something that is never negative.

The *loss* of a labelled token is 1 for a wrong answer and 0 for a right one (accuracy), or −log p of the
label (cross-entropy). Since losses only add up, a threshold that is missed on a part of the data is missed on
all of it.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from interbasis.base.devices import double, near_sums
from interbasis.base.errors import InterbasisError
from interbasis.base.literals import Metric
from interbasis.data.samples import IGNORED_LABEL
from interbasis.network.network import Network


@dataclass(frozen=True, eq=False)
class Score:
    """Losses over data: of every sample, summed over its labelled tokens."""

    metric: Metric
    losses: Tensor
    """[samples], float64."""
    counts: Tensor
    """Labelled tokens of each sample, [samples], float64."""
    complete: bool = True
    """False where the sum was broken off because a threshold could not be met any more."""

    @property
    def value(self) -> float:
        """The metric over all samples; where broken off, a bound that it cannot be better than."""
        return as_metric(self.metric, self.losses.sum().item() / self.counts.sum().item())

    def resampled(self, weights: Tensor) -> Tensor:  # [draws, samples] -> [draws]
        """The metric on samples drawn again and again, ``weights`` saying how often each was drawn."""
        mean = (weights @ self.losses) / (weights @ self.counts)
        return 1 - mean if self.metric == "accuracy" else mean


def default_metric(network: Network) -> Metric:
    """Accuracy for classifiers, cross-entropy for language models, as in the paper."""
    return "cross_entropy" if network.predicts_next else "accuracy"


def as_metric(metric: Metric, mean_loss: float) -> float:
    return 1 - mean_loss if metric == "accuracy" else mean_loss


def worst_allowed(baseline: Score, tolerance: float) -> float:
    """The worst value that passes: cross-entropy at most baseline + tolerance, accuracy at least baseline −
    tolerance in whole answers.

    Of N answers ⌊tolerance · N⌋ more may be wrong, with the tolerance as the decimal number that was given.
    The difference of two rounded accuracies would reject a tenth of all exact ties.
    """
    if baseline.metric == "cross_entropy":
        return baseline.value + tolerance
    answers = int(baseline.counts.sum())
    wrong = int(baseline.losses.sum()) + math.floor(Fraction(repr(float(tolerance))) * answers)
    return as_metric("accuracy", wrong / answers)


def passes(metric: Metric, value: float, limit: float) -> bool:
    return value >= limit if metric == "accuracy" else value <= limit


def sample_losses(metric: Metric, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and numbers of labelled tokens of every sample, [n] each.

    outputs [n, classes] with labels [n], or [n, T, classes] with labels [n, T]. Where only the last position
    comes out, or one output belongs to all positions, labels have none.
    """
    if labels.shape != outputs.shape[:-1]:
        raise InterbasisError(
            f"expected labels of shape {list(outputs.shape[:-1])}, one for every output of the model, "
            f"received {list(labels.shape)}"
        )
    labels = labels.to(outputs.device).long()
    counted = labels != IGNORED_LABEL
    known = labels[counted]
    if known.numel() and not 0 <= known.min() <= known.max() < outputs.shape[-1]:
        raise InterbasisError(
            f"labels lie between 0 and {outputs.shape[-1] - 1}, the model's outputs ({IGNORED_LABEL} is "
            f"ignored); received {known.min()} to {known.max()}"
        )
    if metric == "accuracy":
        losses = double(outputs.argmax(-1) != labels)
    else:
        where = labels.masked_fill(~counted, 0)[..., None]
        losses = double(outputs.logsumexp(-1) - outputs.gather(-1, where)[..., 0])
    losses = torch.where(near_sums(counted), losses, 0.0)
    return losses.view(len(labels), -1).sum(1).cpu(), counted.view(len(labels), -1).sum(1).cpu().double()
