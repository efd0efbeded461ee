"""Analysis of all features of a run, in one pass over the data for all layers.

Which analyses are made depends on the network and the data: Fourier labels for modular addition, probes where
samples have a class, positions where layers have several; histograms, direct effects and examples always.
The sums of the pass can be stored as tensors and restored, so that an interrupted pass resumes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from interbasis.analysis.features import records
from interbasis.analysis.features.activations import FeatureChunk, FeatureReader, chunk_size, input_chunks
from interbasis.analysis.features.contexts import ImageRendering, Presentation, TokenRendering, lookup, short
from interbasis.analysis.features.dataset_examples import ExamplePlan, ExampleSums
from interbasis.analysis.features.effects import direct_effects, idle, mean_effect_records, mean_jacobians
from interbasis.analysis.features.fourier_labels import fourier, monosemantic
from interbasis.analysis.features.histograms import HistogramSums
from interbasis.analysis.features.labels import TokenIndex, TokenSums, evidence, label
from interbasis.analysis.features.probes import GroupMoments, class_areas, known_labels
from interbasis.analysis.features.records import FeatureExamples, LayerFeatures, MeanEffects
from interbasis.analysis.nested_states import nested, within
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress
from interbasis.compute.checkpoints import Checkpoints, State
from interbasis.data.batches import Batches
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network
from interbasis.network.receptive_field import receptive_fields

MAX_CLASSES = 64
"""Labels with more different values than this (modular addition's, tokens) are not treated as classes."""
MAX_PROBED_SAMPLES = 2**16
"""Samples that AUROC is taken from: the first of the data, since ranks need all values at once."""


class Analysis:
    """All layers of a graph, analysed in one pass over the data."""

    def __init__(
        self,
        graph: InteractionGraph,
        network: Network,
        chosen: Mapping[str, Sequence[int]],
        plan: ExamplePlan,
        presentation: Presentation,
        mean_effect_samples: int,
    ):
        self.graph, self.presentation, self.mean_effect_samples = graph, presentation, mean_effect_samples
        self.network = network.to(graph.config.torch_dtype)
        readers = [FeatureReader(self.network, layer) for layer in graph.layers]
        self.layers = [
            LayerAnalysis(reader, chosen[reader.layer.name], plan, presentation) for reader in readers
        ]
        self.counted = CountedTokens.from_layers(self.network, graph.layers)

    def run(
        self, batches: Batches, progress: Progress, checkpoints: Checkpoints, numbers: Sequence[int]
    ) -> dict[str, LayerFeatures]:
        """Describe the layers with these numbers.

        Unfinished work is stored chunk by chunk, then layer by layer.
        """
        layers = [self.layers[k] for k in numbers]
        if not layers:
            return {}
        checkpoint, index = checkpoints.checkpoint("sums", len(batches)), TokenIndex()
        if checkpoint.done:
            index.restore(checkpoint.tensors["token_index"])
            for k, layer in enumerate(layers):
                layer.restore(within(str(k), checkpoint.tensors))

        def state() -> State:
            sums = {str(k): layer.state() for k, layer in enumerate(layers)}
            return nested(sums) | {"token_index": index.tokens}, {}

        text = self.network.predicts_next and self.presentation.rendering.kind == "tokens"
        size = min(chunk_size(layer.reader, batches) for layer in self.layers)
        for first, inputs, labels in input_chunks(batches, size, _has_classes(batches), checkpoint.done):
            groups = index.groups(inputs) if text else None
            for layer, values in zip(layers, self._values(layers, inputs), strict=True):
                layer.add(FeatureChunk.validated(first, inputs, labels, values, batches.name), groups)
            done = first + len(inputs) - batches.offset
            checkpoint.save(done, state)
            progress("features", done, len(batches))
        moved = self._mean_effects(batches, progress) if text and self.mean_effect_samples else {}
        described = {}
        for done, (k, layer) in enumerate(zip(numbers, layers, strict=True), 1):
            name = layer.basis.name
            describe = partial(layer.describe, index if text else None, moved.get(name))
            _, record = checkpoints.remember(f"layer.{k}", describe)
            described[name] = LayerFeatures.model_validate(record)
            progress("direct effects", done, len(layers))
        return described

    @torch.no_grad()
    def _values(self, layers: "Sequence[LayerAnalysis]", inputs: Tensor) -> Iterator[Tensor]:
        """Features [n, T, features] of each layer, from one run of the network.

        They are at their mean for tokens that did not count in the build: such tokens are far from all that
        the features were made for, and would be the extremes of every one.
        """
        activations = self.network.activations(inputs.to(self.network.device))
        for layer in layers:
            index, basis = layer.reader.index, layer.basis
            f, values = activations[index], basis.to_features(activations[index])
            if not self.counted.all and basis.mean is not None:
                counts = self.counted.at(index, self.network.nodes[index], f)
                values = torch.where(counts[..., None], values, basis.to_features(basis.mean.to(f)))
            yield values

    def _mean_effects(self, batches: Batches, progress: Progress) -> dict[str, list[MeanEffects]]:
        """Mean effects of the features of every layer but the last on the outputs."""
        count = min(self.mean_effect_samples, len(batches))
        chosen = [layer.chosen for layer in self.layers[:-1]]
        progress("mean effects", 0, count)
        jacobians = mean_jacobians(self.network, self.graph.layers, batches.head(count), chosen)
        progress("mean effects", count, count)
        return mean_effect_records(jacobians, self.presentation.outputs)

    def idle(self) -> tuple[records.Idle, ...]:
        """Features without outgoing edges, where the graph has edges."""
        return tuple(idle(self.graph)) if self.graph.edges else ()

    def examples(self, numbers: Sequence[int]) -> dict[str, tuple[FeatureExamples, ...]]:
        """Dataset examples of the layers that were passed over."""
        return {self.layers[k].basis.name: self.layers[k].shown() for k in numbers}


def _has_classes(batches: Batches) -> bool:
    """Whether samples have one label each, of few different ones; looked at in the first of the data."""
    try:
        _, _, labels = next(batches.labelled_chunks(4096))
    except InterbasisError:
        return False
    return labels.ndim == 1 and len(labels.unique()) <= min(MAX_CLASSES, len(labels) // 2)


class LayerAnalysis:
    """Examples, histograms, moments by position and by class, and values for AUROC, of one layer.

    Nothing is collected of features that are not ``chosen``, so column k of what is collected is feature
    ``chosen[k]``.
    """

    def __init__(
        self, reader: FeatureReader, chosen: Sequence[int], plan: ExamplePlan, presentation: Presentation
    ):
        self.reader, self.basis, self.presentation = reader, reader.layer, presentation
        self.chosen = list(chosen)
        rendering = presentation.rendering
        if isinstance(rendering, ImageRendering):  # with the part that each of the layer's positions sees
            fields = receptive_fields(reader.network, reader.index)
            if fields is not None and fields.shape[1] == 2:
                rendering = replace(rendering, fields=fields)
        self.columns = self.chosen or [0]  # a layer of the constant alone has a column, but nothing to show
        self.examples, self.histograms = ExampleSums(plan, rendering), HistogramSums()
        self.tokens = TokenSums(len(self.columns))
        self.positions = self.classes = GroupMoments.empty(len(self.columns))
        self.probed = [(torch.zeros(0, len(self.columns)).double(), torch.zeros(0).long())]
        """Values [n, columns] and labels [n]."""

    def add(self, chunk: FeatureChunk, groups: Tensor | None = None) -> None:
        """Add samples; ``groups`` [n, T] are the numbers of their tokens, where they are text."""
        values = chunk.values[:, :, self.columns]
        chunk = replace(chunk, values=values)
        self.examples.add(chunk)
        self.histograms.add(chunk)
        self.positions = GroupMoments.by_position(values).merge(self.positions)
        if groups is not None:
            self.tokens.add(chunk, groups)
        if chunk.labels is not None:
            # a class shows in the mean over pixels, but at the last position of a sequence
            on_grid = self.reader.network.nodes[self.reader.index].grid
            values = values.mean(1) if on_grid else values[:, -1]
            self.classes = GroupMoments.from_values(values, chunk.labels).merge(self.classes)
            if chunk.first < MAX_PROBED_SAMPLES:
                self.probed.append((values, chunk.labels))

    def state(self) -> dict[str, Tensor]:
        """Tensors to resume from."""
        values, labels = (torch.cat(column) for column in zip(*self.probed, strict=True))
        parts = {"examples": self.examples.state(), "histograms": self.histograms.state()}
        parts |= {name: vars(getattr(self, name)) for name in ("tokens", "positions", "classes")}
        return nested(parts | {"probed": {"values": values, "labels": labels}})

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        self.examples.restore(within("examples", tensors))
        self.histograms.restore(within("histograms", tensors))
        vars(self.tokens).update(within("tokens", tensors))
        self.positions = GroupMoments(**within("positions", tensors))
        self.classes = GroupMoments(**within("classes", tensors))
        self.probed = [(tensors["probed.values"], tensors["probed.labels"])]

    def describe(self, index: TokenIndex | None, mean_effects: Sequence[MeanEffects] | None) -> State:
        """The record `LayerFeatures` of the features that are chosen, as plain values."""
        network, basis, rendering = self.reader.network, self.basis, self.presentation.rendering
        labels = fourier(network, basis) if network.modulus else None
        effects: list[records.Effects | None] = [None] * len(self.chosen)
        if not self._is_output():
            effects = direct_effects(network, basis, self.presentation.outputs, features=self.chosen)
        histograms, classes, examples = self.histograms.result(), self._classes(), self.shown()
        positions = self._positions()
        tokens = self.tokens.shares(index) if index is not None and self.chosen else {}
        name = rendering.decode if isinstance(rendering, TokenRendering) else str
        features = []
        for k, j in enumerate(self.chosen):
            feature = records.Feature(
                index=j,
                label="",
                histogram=histograms[k],
                fourier=labels[j] if labels else None,
                classes=classes[k],
                positions=positions[k],
                effects=effects[k],
                mean_effects=mean_effects[k] if mean_effects else None,
            )
            isolated = basis.first_feature <= j < basis.first_feature + basis.isolated
            shares = {kind: shares[k] for kind, shares in tokens.items()}
            feature = feature.model_copy(update={"evidence": evidence(feature, shares, name, isolated)})
            features.append(feature.model_copy(update={"label": label(feature, examples[k])}))
        counts = monosemantic(labels, constant=basis.constant) if labels else None
        described = LayerFeatures(name=basis.name, features=tuple(features), monosemantic=counts)
        return {}, described.model_dump(mode="json")

    def shown(self) -> tuple[FeatureExamples, ...]:
        """Examples of the features that are chosen."""
        shown = zip(self.chosen, self.examples.result(range(len(self.chosen))), strict=True)
        return tuple(feature.model_copy(update={"index": j}) for j, feature in shown)

    def _is_output(self) -> bool:
        """Whether the features are the outputs themselves, each of which would push itself."""
        network, basis = self.reader.network, self.basis
        last = self.reader.index == len(network.sections) and all(s.one_by_one for s in network.tail)
        return last and (
            basis.identity or torch.equal(basis.transform, torch.eye(basis.width).to(basis.transform))
        )

    def _positions(self) -> list[records.PositionStatistics | None]:
        """Statistics by position of every chosen feature; None where the layer has a single position."""
        means, shares = self.positions.means.T.tolist(), self.positions.adjusted_explained.tolist()
        if len(self.positions.means) < 2:
            return [None] * len(self.chosen)
        return [
            records.PositionStatistics(means=tuple(map(short, mean)), share=short(share))
            for mean, share in zip(means, shares, strict=True)
        ]

    def _classes(self) -> list[records.ClassStatistics | None]:
        """Statistics by class of every chosen feature; None where samples do not have several classes."""
        areas = class_areas(*known_labels(self.probed))
        if areas is None:
            return [None] * len(self.chosen)
        (classes, area), name = areas, lookup(self.presentation.classes)
        means = self.classes.means[list(classes)].T.tolist()
        shares = self.classes.adjusted_explained.tolist()
        return [
            records.ClassStatistics(
                names=tuple(map(name, classes)),
                means=tuple(map(short, mean)),
                auroc=tuple(map(short, areas)),
                explained=short(explained),
            )
            for mean, areas, explained in zip(means, area.T.tolist(), shares, strict=True)
        ]
