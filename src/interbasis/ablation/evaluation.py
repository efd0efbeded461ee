"""A metric over data, for a network whose features act on each other through some edges or nodes only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from interbasis.ablation.masked_pass import ablated, only
from interbasis.ablation.metrics import Score, as_metric, default_metric, passes, sample_losses
from interbasis.ablation.token_table import Table, tabulate
from interbasis.data.batches import Batches, Data
from interbasis.fit.edges import sections_in_bases
from interbasis.fit.statistics import chunk_size
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Metric

CACHE_BYTES = 2**30
"""Activations of one layer are kept between ablations up to this; beyond it they are computed again."""


@dataclass(frozen=True, eq=False)
class _Part:
    """A chunk of data with its features at a node layer."""

    inputs: Tensor
    labels: Tensor
    features: Tensor | Table  # f̂ [n, T, r]


class Evaluation:
    """Scores of one network, graph, data set and metric, over one ablation after another.

    Without a metric it is the network's (`metrics.default_metric`). Language models take tokens alone.
    Data are passed over in chunks; a pass stops as soon as a limit cannot be met any more. The features of
    the layer where ablations begin are kept in memory, as a table of different tokens where these repeat.
    """

    def __init__(self, network: Network, graph: InteractionGraph, data: Data, metric: Metric | None = None):
        metric = default_metric(network) if metric is None else metric
        if metric not in ("accuracy", "cross_entropy"):
            raise InterbasisError(f"the metric is accuracy or cross_entropy, not {metric!r}")
        self.network = network.to(graph.config.torch_dtype)
        self.graph = graph
        self.metric: Metric = metric
        self.batches = Batches(data, predicts_next=network.predicts_next)
        self.sections = sections_in_bases(self.network, graph.layers)
        self._kept_layer = -1
        self._kept: list[_Part] = []

    @cached_property
    def baseline(self) -> Score:
        """The untouched model's."""
        score = self._score((self.network(inputs), labels) for inputs, labels in self._chunks())
        if not score.counts.sum():
            raise InterbasisError("the data have no labels that count; expected at least one")
        return score

    def edges(self, masks: Mapping[int, Tensor], limit: float | None = None) -> Score:
        """With the masks of some sections in force, broken off once ``limit`` is missed for certain."""
        return self._score(self._through_edges(dict(masks)), limit)

    def nodes(self, layer: int, keep: int | Tensor) -> Score:
        """With some features of a layer kept only."""
        return self._score(self._through_nodes(layer, keep))

    def _score(self, outputs: Iterator[tuple[Tensor, Tensor]], limit: float | None = None) -> Score:
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
                ):
                    return self._broken_off(losses)
        return Score(self.metric, torch.cat(losses), torch.cat(counts))

    def _broken_off(self, losses: list[Tensor]) -> Score:
        """As if all that was not looked at were perfect; it cannot be better than that."""
        counts = self.baseline.counts
        found = torch.cat(losses)
        padded = torch.nn.functional.pad(found, (0, len(counts) - len(found)))
        return Score(self.metric, padded, counts, complete=len(found) == len(counts))

    def _through_edges(self, masks: dict[int, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        first = min(masks)
        for part in self._parts(first):
            f = self._through_mask(first, part.features, masks[first])
            for k in range(first + 1, len(self.sections)):
                if k in masks:
                    f = self._through_mask(k, self.graph.layers[k].features_of(f), masks[k])
                else:
                    f = self.network.sections[k](f)
            yield self.network.finish(f, part.inputs), part.labels

    def _through_mask(self, k: int, features: Tensor | Table, mask: Tensor) -> Tensor:
        """Section k in the bases, and back to the network's coordinates."""
        result = ablated(self.sections[k], features, mask.to(self.network.device))
        return self.graph.layers[k + 1].back(result)

    def _through_nodes(self, layer: int, keep: int | Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        basis = self.graph.layers[layer]
        for part in self._parts(layer):
            features = part.features
            if isinstance(features, Table):
                features = features.rows[features.index]
            f = basis.back(only(features, keep))
            for section in self.network.sections[layer:]:
                f = section(f)
            yield self.network.finish(f, part.inputs), part.labels

    def _parts(self, layer: int) -> Iterator[_Part]:
        """The data at a node layer, kept for the next ablation there if they fit."""
        if self._kept_layer == layer:
            yield from self._kept
            return
        self._kept_layer, self._kept = -1, []
        kept: list[_Part] = []
        size = 0
        basis = self.graph.layers[layer]
        for inputs, labels in self._chunks():
            f = self.network.activations_at(layer, inputs)
            table = tabulate(f)
            features = basis.features_of(f) if table is None else table.map(basis.features_of)
            part = _Part(inputs, labels, features)
            size += _bytes(features)
            if size <= CACHE_BYTES:
                kept.append(part)
            yield part
        if size <= CACHE_BYTES:
            self._kept_layer, self._kept = layer, kept

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = chunk_size(self.network, self.batches)
        for _, inputs, labels in self.batches.labelled_chunks(size, padded=True):
            yield inputs.to(self.network.device), labels


def _bytes(features: Tensor | Table) -> int:
    tensors = [features.rows, features.index] if isinstance(features, Table) else [features]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
