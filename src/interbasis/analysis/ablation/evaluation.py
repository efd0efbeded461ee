"""A metric over data, for a network whose features act on each other through some edges or nodes only.

How well a model does, as a sum over tokens of something that is never negative.

The *loss* of a labelled token is 1 for a wrong answer and 0 for a right one (accuracy), or −log p of the
label (cross-entropy). Since losses only add up, a threshold that is missed on a part of the data is missed on
all of it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from interbasis.analysis.ablation.masked_pass import Before, MaskedNetwork
from interbasis.analysis.ablation.memory import UNLIMITED, AblationPlan
from interbasis.base.devices import double, near_sums
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Metric
from interbasis.compute.executor import chunk_size
from interbasis.data.batches import Batches, Data
from interbasis.data.samples import IGNORED_LABEL
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network

Number = TypeVar("Number", float, Tensor)


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
        return as_metric(self.metric, (weights @ self.losses) / (weights @ self.counts))


def default_metric(network: Network) -> Metric:
    """Accuracy for classifiers, cross-entropy for language models, as in the paper."""
    return "cross_entropy" if network.predicts_next else "accuracy"


def as_metric(metric: Metric, mean_loss: Number) -> Number:
    """The metric of a mean loss, or of several."""
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
        index = labels.masked_fill(~counted, 0)[..., None]
        losses = double(outputs.logsumexp(-1) - outputs.gather(-1, index)[..., 0])
    losses = torch.where(near_sums(counted), losses, 0.0)
    return losses.view(len(labels), -1).sum(1).cpu(), counted.view(len(labels), -1).sum(1).cpu().double()


class Evaluation:
    """Scores of one network, graph, data set and metric, over one ablation after another.

    Without a metric it is the network's (`default_metric`). Language models take tokens alone.
    Data are passed over in chunks; a pass stops as soon as a limit cannot be met any more. The features of
    the layer where ablations begin are held in memory, as a table of different tokens where these repeat.
    Scores are over all tokens; masks act on those that the graph describes, or with ``all_tokens`` on all.
    A ``plan`` says how much is held at once, where memory is limited; there are no tables then, since making
    one takes more than it saves.
    """

    def __init__(
        self,
        network: Network,
        graph: InteractionGraph,
        data: Data,
        metric: Metric | None = None,
        all_tokens: bool = False,
        plan: AblationPlan | None = None,
    ):
        if not graph.edges:
            raise InterbasisError("the graph has no edges to ablate; build it with an edge_method")
        metric = default_metric(network) if metric is None else metric
        if metric not in ("accuracy", "cross_entropy"):
            raise InterbasisError(f"the metric is accuracy or cross_entropy, not {metric!r}")
        self.plan = plan or UNLIMITED
        self.masked = MaskedNetwork.from_graph(network, graph, all_tokens, one_by_one=plan is not None)
        self.network = self.masked.network
        self.graph = graph
        self.metric: Metric = metric
        self.batches = Batches(data, predicts_next=network.predicts_next)
        self._cached_layer = -1
        self._cached: list[tuple[Tensor, Tensor, Before]] = []

    @cached_property
    def baseline(self) -> Score:
        """Score of the original model."""
        score = self.score(self._untouched())
        if not score.counts.sum():
            raise InterbasisError("the data have no usable label; at least one is required")
        return score

    def _untouched(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs and labels; inputs or outputs that are not finite would count as wrong answers."""
        for first, inputs, labels in self._chunks():
            outputs = self.network(inputs)
            for name, values in (("inputs", inputs), ("the model's outputs", outputs)):
                bad = ~values.isfinite().flatten(1).all(1)
                if bad.any():
                    sample = first + int(bad.int().argmax())
                    raise InterbasisError(
                        f"{name} are not finite (NaN or infinite), first for sample {sample} of the "
                        f"{self.batches.name}; look at that input or at the model's weights"
                    )
            yield outputs, labels

    def edges(self, masks: Mapping[int, Tensor], limit: float | None = None) -> Score:
        """Score with the masks of some sections in force, broken off once ``limit`` is missed for certain."""
        outputs = self._outputs(min(masks), lambda before: self.masked.through_edges(before, masks))
        return self.score(outputs, limit)

    def nodes(self, layer: int, keep: int | Tensor) -> Score:
        """Score with some features of a layer kept only."""
        return self.score(
            self._outputs(layer, lambda before: self.masked.through_nodes(before, {layer: keep}))
        )

    @property
    def all_tokens(self) -> bool:
        """Whether masks act on all tokens."""
        return self.masked.counted.all

    def activations_and_labels(self, layer: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """f of a node layer, labels and inputs of all data, in chunks."""
        for _, inputs, labels in self._chunks():
            with torch.no_grad():
                f = self.network.activations_at(layer, inputs)
            yield f, labels, inputs

    def score(self, outputs: Iterable[tuple[Tensor, Tensor]], limit: float | None = None) -> Score:
        """Score of outputs with their labels, chunk by chunk."""
        losses: list[Tensor] = []
        counts: list[Tensor] = []
        total, everything = 0.0, 0.0 if limit is None else self.baseline.counts.sum().item()
        with torch.no_grad():
            for result, labels in outputs:
                loss, count = sample_losses(self.metric, result, labels)
                losses.append(loss)
                counts.append(count)
                total += loss.sum().item()
                if limit is not None and not passes(
                    self.metric, as_metric(self.metric, total / everything), limit
                ):  # as if all that was not evaluated were perfect; it cannot be better than that
                    known, all_counts = torch.cat(losses), self.baseline.counts
                    padded = torch.nn.functional.pad(known, (0, len(all_counts) - len(known)))
                    return Score(self.metric, padded, all_counts, complete=len(known) == len(padded))
        return Score(self.metric, torch.cat(losses), torch.cat(counts))

    def _outputs(self, layer: int, through: Callable[[Before], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs, from a layer on ``through`` the other layers, and labels.

        The data at the layer are held in memory for the next ablation there if they fit.
        """
        if self._cached_layer == layer:
            for inputs, labels, before in self._cached:
                yield self.network.finish(through(before), inputs), labels
            return
        self._cached_layer, self._cached = -1, []
        cached, size, room = [], 0, self.plan.cache_bytes
        per_token = all(section.reads_per_position for section in self.network.sections[layer:][:1])
        for _, inputs, labels in self._chunks():
            before = self.masked.before(layer, inputs, tabulated=per_token and self.plan is UNLIMITED)
            size += before.bytes
            if size <= room:
                cached.append((inputs, labels, before))
            yield self.network.finish(through(before), inputs), labels
        if size <= room:
            self._cached_layer, self._cached = layer, cached

    def _chunks(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Index of the first sample, inputs, labels; padding stays where no position sees it."""
        size = min(chunk_size(self.network, self.batches), self.plan.samples)
        for first, inputs, labels in self.batches.labelled_chunks(size, padded=self.network.predicts_next):
            yield first, inputs.to(self.network.device), labels
