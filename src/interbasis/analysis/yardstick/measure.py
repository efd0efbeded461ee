"""Cross-entropy and divergence of a network at whose places only some directions are kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.analysis.ablation import bootstrap
from interbasis.analysis.ablation.evaluation import Score, sample_losses
from interbasis.analysis.yardstick.codes import LayerCode, changes_nothing
from interbasis.analysis.yardstick.records import IntervalEstimate
from interbasis.base.devices import double
from interbasis.compute.checkpoints import Checkpoint
from interbasis.compute.executor import BLOCKS, chunk_size
from interbasis.data.batches import Batches
from interbasis.data.samples import IGNORED_LABEL
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network
from interbasis.network.replacement import Replacement, replaced_output

Point = Mapping[int, Tensor]
"""Directions kept, bool [directions], by the index of their node layer."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """Sums over the labelled tokens of every sample, point by point, in float64."""

    losses: Tensor
    """Cross-entropies [1 + points, samples]; row 0 is the original network."""
    divergences: Tensor
    """Kullback–Leibler divergences from the original outputs, [points, samples]."""
    counts: Tensor
    """Labelled tokens, [samples]."""
    errors: Tensor
    """E‖x − x̂‖² of the first place, [points], over replaced tokens."""
    metric_errors: Tensor
    """E (x − x̂)ᵀG(x − x̂), [points]; 0 without a metric."""

    @classmethod
    def from_tensors(cls, blocks: Sequence[Mapping[str, Tensor]], number: int = 0) -> "Measurement":
        """Make a measurement of one series, from the sums that `Meter.measure` returns for blocks of data."""

        def over_samples(name: str) -> Tensor:
            return torch.cat([block[name] for block in blocks], -1)

        errors, replaced = (
            torch.stack([block[name] for block in blocks]).sum(0) for name in (f"{number}.errors", "replaced")
        )
        errors = errors / replaced
        losses = torch.cat([over_samples("losses"), over_samples(f"{number}.losses")])
        divergences = over_samples(f"{number}.divergences")
        return cls(losses, divergences, over_samples("counts"), errors[0], errors[1])

    def rises(self, seed: int) -> Tensor:  # [1 + draws, points]
        """Rises of the mean cross-entropy over the original network's: all samples, then resampled ones."""
        values = resampled(self.losses, self.counts, seed)
        return values[:, 1:] - values[:, :1]

    def mean_divergences(self, seed: int) -> Tensor:  # [1 + draws, points]
        """Mean divergences: of all samples, then of resampled ones."""
        return resampled(self.divergences, self.counts, seed)


@dataclass(frozen=True, eq=False)
class PointSeries:
    """Points that one method is measured at; the series of one pass begin at the same node layer."""

    codes: Mapping[int, LayerCode]
    """Codes by the index of their node layer."""
    points: Sequence[Point]
    """Directions kept, for the layers of ``codes``."""
    columns: slice | None = None
    """Coordinates of the place at the first of these layers, whose errors are summed."""
    metric: Tensor | None = None
    """G [w, w] of these coordinates."""


@dataclass(frozen=True, eq=False)
class UntouchedChunk:
    """Samples, with what the original network makes of them."""

    inputs: Tensor
    labels: Tensor
    """On the network's device; ignored ones are 0."""
    labelled: Tensor
    """Mask of the outputs that have a label, bool, shaped as the labels."""
    f: Tensor
    """Activations where the points begin, [n, T, width]."""
    replaced: Tensor
    """Mask of the tokens that are replaced, bool [n, T]."""
    logarithms: Tensor
    """Log-probabilities [n, …, classes]."""
    probabilities: Tensor

    def losses(self, logarithms: Tensor) -> Tensor:  # [n, …, classes] -> [n]
        """Cross-entropies from log-probabilities, summed over the labelled tokens of each sample."""
        return self._sums(-logarithms.gather(-1, self.labels[..., None])[..., 0])

    def divergences(self, logarithms: Tensor) -> Tensor:  # [n, …, classes] -> [n]
        """KL(p ‖ q) of the original probabilities p, summed over the labelled tokens of each sample."""
        return self._sums((self.logarithms - logarithms).mul_(self.probabilities).sum(-1))

    def _sums(self, values: Tensor) -> Tensor:
        return torch.where(self.labelled, double(values), 0.0).view(len(values), -1).sum(1).cpu()


def resampled(sums: Tensor, counts: Tensor, seed: int) -> Tensor:  # [points, samples] -> [1 + draws, points]
    """Means per labelled token over all samples, then over samples drawn again, the same ones for a seed."""
    scores = [Score("cross_entropy", row, counts) for row in sums]
    whole = (sums.sum(1) / counts.sum())[None]
    return torch.cat([whole, *bootstrap.resampled(scores, bootstrap.DRAWS, seed)])


def estimate(rows: Tensor) -> IntervalEstimate:  # [1 + draws]
    """The first entry with the central 95 % of the others."""
    low, high = bootstrap.central(rows[1:])
    return IntervalEstimate(value=rows[0].item(), low=low, high=high)


@dataclass(frozen=True, eq=False)
class Meter:
    """A network and the test data that it is measured on."""

    network: Network
    data: Batches
    """With labels."""
    counted: CountedTokens
    """Tokens that are replaced; all others stay as they are."""

    def blocks(self) -> "list[Meter]":
        """The same network with parts of the data that are measured by themselves."""
        if self.data.read_from_its_beginning:
            return [self]
        size = chunk_size(self.network, self.data)
        count = max(1, min(BLOCKS, -(-len(self.data) // size)))
        return [replace(self, data=block) for block in self.data.blocks(count, size)]

    @torch.no_grad()
    def baseline(self) -> float:
        """Cross-entropy of the original network."""
        size, total, count = chunk_size(self.network, self.data), 0.0, 0.0
        for _, inputs, labels in self.data.labelled_chunks(size, padded=self.network.predicts_next):
            outputs = self.network(inputs.to(self.network.device))
            losses, counts = sample_losses("cross_entropy", outputs, labels)
            total, count = total + losses.sum().item(), count + counts.sum().item()
        return total / count

    @torch.no_grad()
    def measure(self, series: Sequence[PointSeries], checkpoint: Checkpoint) -> dict[str, Tensor]:
        """Measure the network with some directions kept, point by point, in one pass over the data.

        Args:
            series: Points of several methods.
            checkpoint: State of the work, which is resumed.

        Returns:
            The sums, for `Measurement.from_tensors`.
        """
        first, total = min(series[0].codes), len(self.data)
        state = dict(checkpoint.tensors) or _zeros(series, total)
        for start, chunk in () if checkpoint.complete else self._chunks(first, checkpoint.done):
            here = slice(start, start + len(chunk.inputs))
            state["losses"][0, here] = chunk.losses(chunk.logarithms)
            state["counts"][here] = chunk.labelled.view(len(chunk.inputs), -1).sum(1).cpu().double()
            state["replaced"] += chunk.replaced.sum().cpu()
            for number, part in enumerate(series):
                losses, divergences, errors = (
                    state[f"{number}.{name}"] for name in ("losses", "divergences", "errors")
                )
                for row, point in enumerate(part.points):
                    if all(changes_nothing(part.codes[k], keep) for k, keep in point.items()):
                        losses[row, here] = state["losses"][0, here]
                        continue
                    logarithms, f = self._replaced(part, point, chunk)
                    losses[row, here] = chunk.losses(logarithms)
                    divergences[row, here] = chunk.divergences(logarithms)
                    if part.columns is not None:
                        error = (chunk.f - f)[..., part.columns]
                        error = double(error if self.counted.all else error[chunk.replaced])
                        errors[0, row] += error.square().sum().cpu()
                        if part.metric is not None:
                            errors[1, row] += (error @ part.metric.to(error) * error).sum().cpu()
            checkpoint.save(here.stop, lambda: (state, {}))
        return state

    def _chunks(self, first: int, done: int) -> Iterator[tuple[int, UntouchedChunk]]:
        """Samples behind those that are done, each with the index of its first one."""
        network, size = self.network, chunk_size(self.network, self.data)
        for start, inputs, labels in self.data.labelled_chunks(size, done, padded=network.predicts_next):
            inputs = inputs.to(network.device)
            f = network.activations_at(first, inputs)
            outputs = replaced_output(network, first, f, inputs, {})
            sample_losses("cross_entropy", outputs, labels)  # refuses labels that are none of the outputs
            logarithms, labels = outputs.log_softmax(-1), labels.to(network.device).long()
            yield (
                start - self.data.offset,
                UntouchedChunk(
                    inputs=inputs,
                    labels=labels.masked_fill(labels == IGNORED_LABEL, 0),
                    labelled=labels != IGNORED_LABEL,
                    f=f,
                    replaced=self.counted.at(first, network.nodes[first], f),
                    logarithms=logarithms,
                    probabilities=logarithms.exp(),
                ),
            )

    def _replaced(self, series: PointSeries, point: Point, chunk: UntouchedChunk) -> tuple[Tensor, Tensor]:
        """Log-probabilities at a point, and the activations that it begins with."""
        first, *later = sorted(point)
        replacements = {k: self._replacement(k, series.codes[k], point[k]) for k in (first, *later)}
        f = replacements.pop(first)(chunk.f)
        inputs, start = chunk.inputs, f
        if self.counted.all and not point[first].any() and (f == f[:1]).all():
            inputs, start = inputs[:1], f[:1]  # all samples are at the mean: one of them will do
        outputs = replaced_output(self.network, first, start, inputs, replacements).log_softmax(-1)
        return outputs.expand_as(chunk.logarithms), f

    def _replacement(self, layer: int, code: LayerCode, keep: Tensor) -> Replacement:
        node = self.network.nodes[layer]

        def replace(f: Tensor) -> Tensor:
            reconstructed = code.reconstruct(f, keep)
            if self.counted.all:
                return reconstructed
            return torch.where(self.counted.at(layer, node, f)[..., None], reconstructed, f)

        return replace

    @torch.no_grad()
    def replaced_shares(self, layers: Sequence[int]) -> dict[int, float]:
        """Share of the tokens of the first chunk of samples that are replaced, by node layer."""
        if self.counted.all:
            return dict.fromkeys(layers, 1.0)
        _, inputs = next(self.data.chunks(chunk_size(self.network, self.data)))
        inputs = inputs.to(self.network.device)
        nodes, shares = self.network.nodes, {}
        for layer in layers:
            f = self.network.activations_at(layer, inputs)
            shares[layer] = self.counted.at(layer, nodes[layer], f).double().mean().item()
        return shares


def _zeros(series: Sequence[PointSeries], samples: int) -> dict[str, Tensor]:
    """Sums over no data."""
    shapes: dict[str, tuple[int, ...]] = {"losses": (1, samples), "counts": (samples,), "replaced": (1,)}
    for number, part in enumerate(series):
        points = len(part.points)
        shapes |= {f"{number}.{name}": (points, samples) for name in ("losses", "divergences")}
        shapes[f"{number}.errors"] = 2, points
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
