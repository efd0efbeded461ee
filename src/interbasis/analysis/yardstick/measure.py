"""Cross-entropy and divergence of a network at whose places only some directions are kept."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.analysis.ablation import bootstrap
from interbasis.analysis.ablation.evaluation import Score, sample_losses
from interbasis.analysis.yardstick.codes import LayerCode, changes_nothing
from interbasis.analysis.yardstick.records import IntervalEstimate
from interbasis.base.devices import double, near_sums
from interbasis.compute.checkpoints import Checkpoint
from interbasis.compute.executor import BLOCKS, chunk_size
from interbasis.data.batches import Batches
from interbasis.data.samples import IGNORED_LABEL
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network
from interbasis.network.replacement import Replacement, replaced_output

Point = Mapping[int, Tensor]
"""Directions kept, bool [directions], by the index of their node layer."""


SUMS = ("losses", "divergences", "errors", "replaced")
"""Names of the sums of a series."""


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
            torch.stack([block[f"{number}.{name}"] for block in blocks]).sum(0)
            for name in ("errors", "replaced")
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
    """Points that one method is measured at."""

    codes: Mapping[int, LayerCode]
    """Codes by the index of their node layer."""
    points: Sequence[Point]
    """Directions kept, for the layers of ``codes``."""
    columns: slice | None = None
    """Coordinates of the place at the first of these layers, whose errors are summed."""
    metric: Tensor | None = None
    """G [w, w] of these coordinates."""

    @property
    def first(self) -> int:
        """Index of the node layer where the points begin."""
        return min(self.codes)


@dataclass(frozen=True, eq=False)
class UntouchedChunk:
    """Samples, with what the original network makes of them."""

    inputs: Tensor
    labels: Tensor
    """On the network's device; ignored ones are 0."""
    labelled: Tensor
    """Mask of the outputs that have a label, bool, shaped as the labels."""
    activations: Mapping[int, Tensor]
    """By the index of a node layer where points begin, [n, T, width]."""
    replaced: Mapping[int, Tensor]
    """Mask of the tokens that are replaced there, bool [n, T]."""
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
        counted = torch.where(near_sums(self.labelled), double(values), 0.0)
        return counted.view(len(values), -1).sum(1).cpu()


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
        state = dict(checkpoint.tensors) or _zeros(series, len(self.data))
        layers = sorted({part.first for part in series})
        at_mean: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for start, chunk in () if checkpoint.complete else self._chunks(layers, checkpoint.done):
            here = slice(start, start + len(chunk.inputs))
            state["losses"][0, here] = chunk.losses(chunk.logarithms)
            state["counts"][here] = chunk.labelled.view(len(chunk.inputs), -1).sum(1).cpu().double()
            for number, part in enumerate(series):
                sums = {name: state[f"{number}.{name}"] for name in SUMS}
                sums["replaced"] += chunk.replaced[part.first].sum().cpu()
                for row, point in enumerate(part.points):
                    if all(changes_nothing(part.codes[k], keep) for k, keep in point.items()):
                        sums["losses"][row, here] = state["losses"][0, here]
                        continue
                    f = self._replacement(part, point, part.first)(chunk.activations[part.first])
                    if self.counted.all and not point[part.first].any() and (f == f[:1]).all():
                        # all samples are at the mean: one of them will do, for all chunks
                        known = at_mean.get((number, row))
                        if known is None or not torch.equal(known[0], f[:1]):
                            known = f[:1], self._logarithms(part, point, f[:1], chunk.inputs[:1])
                            at_mean[number, row] = known
                        logarithms = known[1].expand_as(chunk.logarithms)
                    else:
                        logarithms = self._logarithms(part, point, f, chunk.inputs)
                    sums["losses"][row, here] = chunk.losses(logarithms)
                    sums["divergences"][row, here] = chunk.divergences(logarithms)
                    if part.columns is not None:
                        sums["errors"][:, row] += self._errors(part, f, chunk)
            checkpoint.save(here.stop, lambda: (state, {}))
        return state

    def _chunks(self, layers: Sequence[int], done: int) -> Iterator[tuple[int, UntouchedChunk]]:
        """Samples behind those that are done, with the index of the first, and activations at layers."""
        network, size = self.network, chunk_size(self.network, self.data)
        for start, inputs, labels in self.data.labelled_chunks(size, done, padded=network.predicts_next):
            inputs, index, activations = inputs.to(network.device), 0, dict[int, Tensor]()
            f = network.prefix(inputs)
            for layer in layers:
                f = activations[layer] = network.run(f, index, layer)
                index = layer
            outputs = replaced_output(network, index, f, inputs, {})
            sample_losses("cross_entropy", outputs, labels)  # refuses labels that are none of the outputs
            logarithms, labels = outputs.log_softmax(-1), labels.to(network.device).long()
            yield (
                start - self.data.offset,
                UntouchedChunk(
                    inputs=inputs,
                    labels=labels.masked_fill(labels == IGNORED_LABEL, 0),
                    labelled=labels != IGNORED_LABEL,
                    activations=activations,
                    replaced={k: self.counted.at(k, network.nodes[k], f) for k, f in activations.items()},
                    logarithms=logarithms,
                    probabilities=logarithms.exp(),
                ),
            )

    def _logarithms(self, series: PointSeries, point: Point, f: Tensor, inputs: Tensor) -> Tensor:
        """Log-probabilities at a point, from the replaced activations f that it begins with."""
        later = {k: self._replacement(series, point, k) for k in point if k != series.first}
        return replaced_output(self.network, series.first, f, inputs, later).log_softmax(-1)

    def _errors(self, series: PointSeries, f: Tensor, chunk: UntouchedChunk) -> Tensor:  # [2]
        """Sums of |x − x̂|² and of (x − x̂)ᵀG(x − x̂) over the tokens that are replaced."""
        error = (chunk.activations[series.first] - f)[..., series.columns]
        error = double(error if self.counted.all else error[chunk.replaced[series.first]])
        by_metric = error.new_zeros(())
        if series.metric is not None:
            by_metric = (error @ series.metric.to(error) * error).sum()
        return torch.stack([error.square().sum(), by_metric]).cpu()

    def _replacement(self, series: PointSeries, point: Point, layer: int) -> Replacement:
        node, code, keep = self.network.nodes[layer], series.codes[layer], point[layer]

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
    shapes: dict[str, tuple[int, ...]] = {"losses": (1, samples), "counts": (samples,)}
    for number, part in enumerate(series):
        points = len(part.points)
        series_shapes = (points, samples), (points, samples), (2, points), (1,)
        shapes |= {f"{number}.{name}": shape for name, shape in zip(SUMS, series_shapes, strict=True)}
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
