"""What one pass over the data collects about the features of one layer: sums that grow chunk by chunk.

They can be stored as tensors and restored, so that an interrupted pass resumes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from interbasis.analysis.features.activations import Chunk, Features
from interbasis.analysis.features.by_position import PositionSums
from interbasis.analysis.features.contexts import Rendering
from interbasis.analysis.features.dataset_examples import ExampleSums, Plan
from interbasis.analysis.features.histograms import HistogramSums
from interbasis.analysis.features.moments import Grouped
from interbasis.analysis.features.probes import auroc
from interbasis.analysis.features.token_groups import TokenSums
from interbasis.data.samples import IGNORED_LABEL

PROBED = 2**16
"""Samples that AUROC is taken from, at most: the first of the data, since ranks need all values at once."""


class LayerSums:
    """Examples, histograms, moments by position and by class, and values for AUROC, of one layer.

    The first ``features`` are chosen, the constant left out; None is all. Nothing is collected of others, so
    column k of what is collected is feature ``chosen[k]``.
    """

    def __init__(
        self, source: Features, features: int | None, plan: Plan | None, rendering: Rendering | None
    ):
        self.source, self.basis = source, source.layer
        first = self.basis.first_feature
        last = self.basis.features if features is None else first + features
        self.chosen = list(range(first, min(last, self.basis.features)))
        self.examples = ExampleSums(plan, rendering)
        self.histograms, self.positions, self.tokens = HistogramSums(), PositionSums(), TokenSums()
        self.on_grid = bool(source.network.nodes[source.index].grid)
        """Whether positions are pixels: then classes are told by the mean over them, not by the last."""
        self.classes: Grouped | None = None
        self.probed: list[tuple[Tensor, Tensor]] = []  # values [n, chosen], labels [n]

    def add(self, chunk: Chunk, groups: Tensor | None = None) -> None:
        """Some samples; ``groups`` [n, T] are their tokens' numbers, where they are text."""
        columns = self.chosen or [0]  # a layer of the constant alone has nothing to tell, but has a column
        chunk = replace(chunk, values=chunk.values[:, :, columns])
        self.examples.add(chunk)
        self.histograms.add(chunk)
        self.positions.add(chunk)
        if groups is not None:
            self.tokens.add(chunk, groups)
        if chunk.labels is not None:
            values = chunk.values.mean(1) if self.on_grid else chunk.values[:, -1]
            moments = Grouped.of(values, chunk.labels)
            self.classes = moments if self.classes is None else self.classes.merge(moments)
            if chunk.first < PROBED:
                self.probed.append((values, chunk.labels))

    def areas(self) -> tuple[list[int], Tensor] | None:
        """(classes, AUROC [classes, chosen]) of each class against the others."""
        if not self.probed:
            return None
        values, labels = self._probed()
        values, labels = values[labels != IGNORED_LABEL], labels[labels != IGNORED_LABEL]
        classes = labels.unique()
        return None if len(classes) < 2 else (classes.tolist(), auroc(values, labels[:, None] == classes))

    def _probed(self) -> tuple[Tensor, Tensor]:
        values, labels = zip(*self.probed, strict=True)
        return torch.cat(values), torch.cat(labels)

    def state(self) -> dict[str, Tensor]:
        """All of it, to go on from."""
        tensors = _under("examples", self.examples.state()) | _under("histograms", self.histograms.state())
        if self.positions.moments is not None:
            tensors |= _under("positions", vars(self.positions.moments))
        tensors |= _under("tokens", self.tokens.state())
        if self.classes is not None:
            tensors |= _under("classes", vars(self.classes))
        if self.probed:
            tensors["probed.values"], tensors["probed.labels"] = self._probed()
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up a state."""
        self.examples.restore(_within("examples", tensors))
        self.histograms.restore(_within("histograms", tensors))
        if moments := _within("positions", tensors):
            self.positions.moments = Grouped(**moments)
        if tokens := _within("tokens", tensors):
            self.tokens.restore(tokens)
        if classes := _within("classes", tensors):
            self.classes = Grouped(**classes)
        if probed := _within("probed", tensors):
            self.probed = [(probed["values"], probed["labels"])]


def state_of(layers: Iterable[LayerSums]) -> dict[str, Tensor]:
    """The state of all layers."""
    named = (_under(str(k), layer.state()) for k, layer in enumerate(layers))
    return {name: tensor for some in named for name, tensor in some.items()}


def restore_all(layers: Iterable[LayerSums], tensors: Mapping[str, Tensor]) -> None:
    """Take up the state of all layers."""
    for k, layer in enumerate(layers):
        layer.restore(_within(str(k), tensors))


def _under(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{key}": tensor for key, tensor in tensors.items()}


def _within(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
