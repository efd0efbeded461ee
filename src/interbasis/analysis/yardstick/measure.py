"""Cross-entropy and divergence of a network at whose places only some directions are kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.ablation import bootstrap
from interbasis.analysis.ablation.evaluation import Score, sample_losses
from interbasis.analysis.yardstick.codes import LayerCode
from interbasis.analysis.yardstick.records import IntervalEstimate
from interbasis.base.devices import double
from interbasis.compute.checkpoints import Checkpoint
from interbasis.compute.executor import chunk_size
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
    def from_tensors(cls, state: Mapping[str, Tensor]) -> "Measurement":
        """Make a measurement of the sums that `Meter.measure` stores."""
        errors = state["errors"] / state["replaced"]
        return cls(state["losses"], state["divergences"], state["counts"], errors[0], errors[1])

    def rises(self, seed: int) -> Tensor:  # [1 + draws, points]
        """Rises of the mean cross-entropy over the original network's: all samples, then resampled ones."""
        values = resampled(self.losses, self.counts, seed)
        return values[:, 1:] - values[:, :1]

    def mean_divergences(self, seed: int) -> Tensor:  # [1 + draws, points]
        """Mean divergences: of all samples, then of resampled ones."""
        return resampled(self.divergences, self.counts, seed)


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
    def measure(
        self,
        codes: Mapping[int, LayerCode],
        points: Sequence[Point],
        checkpoint: Checkpoint,
        metric: Tensor | None = None,
        columns: slice | None = None,
    ) -> dict[str, Tensor]:
        """Measure the network with some directions kept, point by point.

        Args:
            codes: Codes by the index of their node layer.
            points: Directions kept, for the layers of ``codes``.
            checkpoint: State of the work, which is resumed.
            metric: G [w, w] of the coordinates ``columns`` at the first of these layers.
            columns: Coordinates of the place at the first of these layers.

        Returns:
            The sums, for `Measurement.from_tensors`.
        """
        network, size = self.network, chunk_size(self.network, self.data)
        total = len(self.data)
        state = dict(checkpoint.tensors) or {
            "losses": torch.zeros(1 + len(points), total, dtype=torch.float64),
            "divergences": torch.zeros(len(points), total, dtype=torch.float64),
            "counts": torch.zeros(total, dtype=torch.float64),
            "errors": torch.zeros(2, len(points), dtype=torch.float64),
            "replaced": torch.zeros(1, dtype=torch.float64),
        }
        first = min(codes)
        chunks = self.data.labelled_chunks(size, checkpoint.done, padded=network.predicts_next)
        for start, inputs, labels in () if checkpoint.complete else chunks:
            inputs = inputs.to(network.device)
            f = network.activations_at(first, inputs)
            here = slice(start - self.data.offset, start - self.data.offset + len(inputs))
            untouched = replaced_output(network, first, f, inputs, {}).log_softmax(-1)
            state["losses"][0, here], state["counts"][here] = sample_losses(
                "cross_entropy", untouched, labels
            )
            replaced = self.counted.at(first, network.nodes[first], f)
            state["replaced"] += replaced.sum().cpu()
            for number, point in enumerate(points):
                replacements = {k: self._replacement(k, codes[k], keep) for k, keep in point.items()}
                outputs = replaced_output(network, first, f, inputs, replacements).log_softmax(-1)
                state["losses"][1 + number, here] = sample_losses("cross_entropy", outputs, labels)[0]
                state["divergences"][number, here] = _divergences(untouched, outputs, labels)
                if columns is not None:
                    error = (f - replacements[first](f))[..., columns][replaced].double()
                    state["errors"][0, number] += error.square().sum().cpu()
                    if metric is not None:
                        state["errors"][1, number] += (error @ metric.to(error) * error).sum().cpu()
            checkpoint.save(here.stop, lambda: (state, {}))
        return state

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


def _divergences(untouched: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:  # -> [n]
    """KL(p ‖ q) of log-probabilities p and q [n, …, classes], summed over the labelled tokens of each
    sample."""
    divergences = double((untouched.exp() * (untouched - outputs)).sum(-1)).cpu()
    return torch.where(labels.cpu() != IGNORED_LABEL, divergences, 0.0).view(len(labels), -1).sum(1)
