"""Analysis of all features of a run, in one pass over the data for all layers.

Which analyses are made depends on the network and the data: Fourier labels for modular addition, probes where
samples have a class, positions where layers have several; histograms, direct effects and examples always.
The sums of the pass can be stored as tensors and restored, so that an interrupted pass resumes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from interbasis.analysis.features import records
from interbasis.analysis.features.activations import (
    FeatureChunk,
    FeatureReader,
    chunk_size,
    input_chunks,
    validated_values,
)
from interbasis.analysis.features.contexts import (
    ImageRendering,
    Rendering,
    RowRendering,
    TokenRendering,
    default_rendering,
    renderings,
    short,
)
from interbasis.analysis.features.dataset_examples import ExamplePlan, ExampleSums, nested, within
from interbasis.analysis.features.effects import direct_effects, idle
from interbasis.analysis.features.fourier_labels import fourier
from interbasis.analysis.features.histograms import HistogramSums
from interbasis.analysis.features.labels import evidence, label
from interbasis.analysis.features.mean_effects import mean_effect_records, mean_jacobians
from interbasis.analysis.features.moments import GroupMoments
from interbasis.analysis.features.monosemanticity import monosemantic
from interbasis.analysis.features.probes import class_areas
from interbasis.analysis.features.records import Feature, FeatureExamples, LayerFeatures, MeanEffects
from interbasis.analysis.features.token_groups import TokenIndex, TokenSums
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoints, State
from interbasis.data.batches import Batches, Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network
from interbasis.network.receptive_field import receptive_fields

MAX_CLASSES = 64
"""Labels with more different values than this (modular addition's, tokens) are not treated as classes."""
MAX_PROBED_SAMPLES = 2**16
"""Samples that AUROC is taken from: the first of the data, since ranks need all values at once."""


@dataclass(frozen=True)
class Presentation:
    """Rendering of samples, and names of classes and outputs."""

    rendering: Rendering
    classes: Sequence[str] = ()
    outputs: Sequence[str] | None = None

    @classmethod
    def from_data(cls, network: Network, data: Data, batches: Batches) -> "Presentation":
        """The presentation that follows from the network and the data."""
        if names := network.token_names:
            return cls(TokenRendering(lambda token: names[token]), outputs=names)
        rendering, classes, outputs = renderings(data)
        if rendering is None:
            rendering = default_rendering(batches.first())
            if isinstance(rendering, RowRendering | ImageRendering):
                rendering = replace(rendering, classes=classes)
        return cls(rendering, classes, outputs)


class Analysis:
    """All layers of a graph, analysed in one pass over the data."""

    def __init__(
        self,
        graph: InteractionGraph,
        network: Network,
        top: int | None,
        plan: ExamplePlan,
        presentation: Presentation,
        mean_effect_samples: int = 0,
    ):
        self.graph, self.presentation = graph, presentation
        self.mean_effect_samples = mean_effect_samples
        self.network = network.to(graph.config.torch_dtype)
        readers = [FeatureReader(self.network, layer) for layer in graph.layers]
        self.layers = [LayerAnalysis(reader, top, plan, presentation) for reader in readers]
        self.counted = CountedTokens.from_layers(self.network, graph.layers)

    def run(
        self,
        batches: Batches,
        progress: Progress = silent,
        checkpoints: Checkpoints = NO_CHECKPOINTS,
        numbers: Sequence[int] | None = None,
    ) -> dict[str, LayerFeatures]:
        """Describe the layers with these numbers; default: all.

        Unfinished work is stored chunk by chunk, then layer by layer.
        """
        numbers = range(len(self.layers)) if numbers is None else numbers
        layers = [self.layers[k] for k in numbers]
        if not layers:
            return {}
        checkpoint, index = checkpoints.checkpoint("sums", len(batches)), TokenIndex()
        for k, layer in enumerate(layers):
            layer.restore(within(str(k), checkpoint.tensors))
        if "token_index" in checkpoint.tensors:
            index.restore(checkpoint.tensors["token_index"])

        def state() -> State:
            tensors = {"token_index": index.tokens}
            for k, layer in enumerate(layers):
                tensors |= nested(str(k), layer.state())
            return tensors, {}

        text = self.network.predicts_next and self.presentation.rendering.kind == "tokens"
        size = min(chunk_size(layer.reader, batches) for layer in self.layers)
        for first, inputs, labels in input_chunks(batches, size, _has_classes(batches), checkpoint.done):
            groups = index.groups(inputs) if text else None
            for layer, values in zip(layers, self._values(layers, inputs), strict=True):
                values = validated_values(values, inputs, batches.name, first)
                layer.add(FeatureChunk(first, inputs, labels, values), groups)
            done = first + len(inputs) - batches.offset
            checkpoint.save(done, state)
            progress("features", done, len(batches))
        moved = self._mean_effects(batches, progress) if text and self.mean_effect_samples else {}
        described = {}
        for done, (k, layer) in enumerate(zip(numbers, layers, strict=True), 1):
            name = layer.basis.name
            describe = partial(_described, layer, index if text else None, moved.get(name))
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
            f = activations[index]
            values = basis.to_features(f)
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


def _described(
    layer: "LayerAnalysis", index: TokenIndex | None, mean_effects: Sequence[MeanEffects] | None
) -> State:
    return {}, layer.describe(index, mean_effects).model_dump(mode="json")


def _has_classes(batches: Batches) -> bool:
    """Whether samples have one label each, of few different ones; looked at in the first of the data."""
    try:
        _, _, labels = next(batches.labelled_chunks(4096))
    except InterbasisError:
        return False
    return labels.ndim == 1 and len(labels.unique()) <= min(MAX_CLASSES, len(labels) // 2)


class LayerAnalysis:
    """Examples, histograms, moments by position and by class, and values for AUROC, of one layer.

    The first ``top`` features are chosen, the constant left out; None is all. Nothing is collected of others,
    so column k of what is collected is feature ``chosen[k]``.
    """

    def __init__(self, reader: FeatureReader, top: int | None, plan: ExamplePlan, presentation: Presentation):
        self.reader, self.basis, self.presentation = reader, reader.layer, presentation
        first = self.basis.first_feature
        last = self.basis.features if top is None else first + top
        self.chosen = list(range(first, min(last, self.basis.features)))
        rendering = presentation.rendering
        if isinstance(rendering, ImageRendering):  # with the part that each of the layer's positions sees
            fields = receptive_fields(reader.network, reader.index)
            if fields is not None and fields.shape[1] == 2:
                rendering = replace(rendering, fields=fields)
        self.examples = ExampleSums(plan, rendering)
        self.histograms, self.tokens = HistogramSums(), TokenSums()
        self.positions: GroupMoments | None = None
        self.classes: GroupMoments | None = None
        self.probed: list[tuple[Tensor, Tensor]] = []  # values [n, chosen], labels [n]

    def add(self, chunk: FeatureChunk, groups: Tensor | None = None) -> None:
        """Add samples; ``groups`` [n, T] are the numbers of their tokens, where they are text."""
        columns = self.chosen or [0]  # a layer of the constant alone has nothing to show, but has a column
        values = chunk.values[:, :, columns]
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
        parts: dict[str, Mapping[str, Tensor]] = {
            "examples": self.examples.state(),
            "histograms": self.histograms.state(),
            "tokens": self.tokens.state(),
        }
        for name, moments in (("positions", self.positions), ("classes", self.classes)):
            parts[name] = {} if moments is None else vars(moments)
        if self.probed:
            values, labels = (torch.cat(column) for column in zip(*self.probed, strict=True))
            parts["probed"] = {"values": values, "labels": labels}
        return {key: tensor for name, part in parts.items() for key, tensor in nested(name, part).items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from a state."""
        self.examples.restore(within("examples", tensors))
        self.histograms.restore(within("histograms", tensors))
        self.tokens.restore(within("tokens", tensors))
        if positions := within("positions", tensors):
            self.positions = GroupMoments(**positions)
        if classes := within("classes", tensors):
            self.classes = GroupMoments(**classes)
        if probed := within("probed", tensors):
            self.probed = [(probed["values"], probed["labels"])]

    def describe(self, index: TokenIndex | None, mean_effects: Sequence[MeanEffects] | None) -> LayerFeatures:
        """Records of the features that are chosen."""
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
            feature = Feature(
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
        counts = None
        if labels is not None:
            counted = monosemantic(labels, constant=basis.constant)
            counts = records.MonosemanticCount(**counted.model_dump(exclude={"shares"}))
        return LayerFeatures(name=basis.name, features=tuple(features), monosemantic=counts)

    def shown(self) -> tuple[FeatureExamples, ...]:
        """Examples of the features that are chosen."""
        examples = self.examples.result(range(len(self.chosen)))
        return tuple(
            FeatureExamples(index=j, bands=feature.bands)
            for j, feature in zip(self.chosen, examples, strict=True)
        )

    def _is_output(self) -> bool:
        """Whether the features are the outputs themselves, each of which would push itself."""
        network, basis = self.reader.network, self.basis
        last = self.reader.index == len(network.sections) and all(s.one_by_one for s in network.tail)
        return last and (
            basis.identity or torch.equal(basis.transform, torch.eye(basis.width).to(basis.transform))
        )

    def _positions(self) -> list[records.PositionStatistics | None]:
        """Statistics by position of every chosen feature; None where the layer has a single position."""
        if self.positions is None or len(self.positions.means) < 2:
            return [None] * len(self.chosen)
        columns = zip(
            self.positions.means.T.tolist(), self.positions.adjusted_explained.tolist(), strict=True
        )
        return [
            records.PositionStatistics(means=tuple(map(short, means)), share=short(share))
            for means, share in columns
        ]

    def _classes(self) -> list[records.ClassStatistics | None]:
        """Statistics by class of every chosen feature; None where samples do not have several classes."""
        areas = class_areas(self.probed)
        if self.classes is None or areas is None:
            return [None] * len(self.chosen)
        classes, area = areas
        names = self.presentation.classes
        columns = zip(
            self.classes.means[list(classes)].T.tolist(),
            area.T.tolist(),
            self.classes.adjusted_explained.tolist(),
            strict=True,
        )
        return [
            records.ClassStatistics(
                names=tuple(names[c] if c < len(names) else str(c) for c in classes),
                means=tuple(map(short, means)),
                auroc=tuple(map(short, areas)),
                explained=short(explained),
            )
            for means, areas, explained in columns
        ]
