"""All there is to say about a run's features, in one pass over the data for all layers.

Which analyses are made depends on the network and the data: Fourier labels for modular addition, probes where
samples have a class, positions where layers have several; histograms, direct effects and examples always.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.analysis.features.activations import Chunk, Features, checked, chunk_size, of
from interbasis.analysis.features.collecting import LayerSums, restore_all, state_of
from interbasis.analysis.features.contexts import Images, Rendering, Rows, Tokens, short
from interbasis.analysis.features.dataset_examples import Plan, default_rendering
from interbasis.analysis.features.effects import direct_effects
from interbasis.analysis.features.fourier_labels import fourier
from interbasis.analysis.features.labels import evidence, label
from interbasis.analysis.features.mean_effects import mean_jacobians, records_of
from interbasis.analysis.features.monosemanticity import monosemantic
from interbasis.analysis.features.names import renderings
from interbasis.analysis.features.records import (
    ClassStatistics,
    Effects,
    Feature,
    FeatureExamples,
    Idle,
    LayerFeatures,
    MeanEffects,
    MonosemanticCount,
    PositionStatistics,
)
from interbasis.analysis.features.relevance import idle
from interbasis.analysis.features.token_groups import TokenIndex
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoint, Checkpoints
from interbasis.data.batches import Batches, Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network
from interbasis.network.receptive_field import receptive_fields

MAX_CLASSES = 64
"""Labels with more different values than this (modular addition's, tokens) are not treated as classes."""


@dataclass(frozen=True)
class Presentation:
    """How samples are shown, and what classes and outputs are called."""

    rendering: Rendering
    classes: Sequence[str] = ()
    outputs: Sequence[str] | None = None

    @classmethod
    def of(cls, network: Network, data: Data, batches: Batches) -> "Presentation":
        """What follows from the network and the data."""
        if names := network.token_names:
            return cls(Tokens(lambda token: names[token]), outputs=names)
        rendering, classes, outputs = renderings(data)
        if rendering is None:
            rendering = default_rendering(batches.first())
            if isinstance(rendering, Rows | Images):
                rendering = replace(rendering, classes=classes)
        return cls(rendering, classes, outputs)


class Analysis:
    """All layers of a graph, analysed in one pass over the data."""

    def __init__(
        self,
        graph: InteractionGraph,
        network: Network,
        top: int | None,
        plan: Plan,
        shown: Presentation,
        mean_effect_samples: int = 0,
    ):
        self.graph, self.presentation = graph, shown
        self.mean_effect_samples = mean_effect_samples
        self.network = network.to(graph.config.torch_dtype)
        sources = [of(self.network, layer) for layer in graph.layers]
        self.layers = [_Layer(one, top, plan, _rendering(shown.rendering, one)) for one in sources]
        self.counted = CountedTokens.of_graph(self.network, graph)

    def run(
        self,
        batches: Batches,
        progress: Progress = silent,
        checkpoints: Checkpoints = NO_CHECKPOINTS,
        numbers: Sequence[int] | None = None,
    ) -> dict[str, LayerFeatures]:
        """What is said of every layer; unfinished work is stored chunk by chunk, then layer by layer.

        ``numbers`` are those of the layers that are looked at, all of them unless said otherwise.
        """
        numbers = range(len(self.layers)) if numbers is None else numbers
        own = [self.layers[k] for k in numbers]
        if not own:
            return {}
        checkpoint = checkpoints.checkpoint("sums", len(batches))
        restore_all(own, checkpoint.tensors)
        index = TokenIndex()
        if "token_index" in checkpoint.tensors:
            index.restore(checkpoint.tensors["token_index"])
        text = self.network.predicts_next and self.presentation.rendering.kind == "tokens"
        size = min(chunk_size(layer.source, batches) for layer in self.layers)
        for chunk in _chunks(batches, size, _has_classes(batches), checkpoint.done):
            groups = index.groups(chunk.inputs) if text else None
            for layer, values in zip(own, self._values(own, chunk, batches.name), strict=True):
                layer.add(replace(chunk, values=values), groups)
            done = chunk.first + len(chunk.inputs) - batches.offset
            checkpoint.save(done, lambda: (state_of(own) | {"token_index": index.tokens}, {}))
            progress("features", done, len(batches))
        described = {}
        moved = self._mean_effects(batches, progress) if text else {}
        for done, (k, layer) in enumerate(zip(numbers, own, strict=True), 1):
            name, known = layer.basis.name, checkpoints.checkpoint(f"layer.{k}")
            described[name] = self._described(layer, index if text else None, moved.get(name), known)
            progress("direct effects", done, len(own))
        return described

    @torch.no_grad()
    def _values(self, layers: "Sequence[_Layer]", chunk: Chunk, data: str) -> Iterator[Tensor]:
        """The features of some layers, from one run of the network."""
        activations = self.network.activations(chunk.inputs.to(self.network.device))
        for layer in layers:
            values = _values(layer, activations[layer.source.index], self.counted)
            yield checked(values, chunk.inputs, data, chunk.first)

    def _mean_effects(self, batches: Batches, progress: Progress) -> dict[str, list[MeanEffects]]:
        """What the features of every layer but the last do to the outputs on average."""
        if not self.mean_effect_samples:
            return {}
        some = min(self.mean_effect_samples, len(batches))
        chosen = [layer.chosen for layer in self.layers[:-1]]
        progress("mean effects", 0, some)
        jacobians = mean_jacobians(self.network, self.graph.layers, batches.head(some), chosen)
        progress("mean effects", some, some)
        return records_of(jacobians, self.presentation.outputs)

    def _described(
        self,
        layer: "_Layer",
        index: TokenIndex | None,
        moved: Sequence[MeanEffects] | None,
        checkpoint: Checkpoint,
    ) -> LayerFeatures:
        if checkpoint.complete:
            return LayerFeatures.model_validate(checkpoint.values)
        features = layer.describe(self.network, self.presentation, index, moved)
        checkpoint.save(1, lambda: ({}, features.model_dump(mode="json")))
        return features

    def idle(self) -> tuple[Idle, ...]:
        """Features without outgoing edges, where the graph has edges."""
        return tuple(idle(self.graph)) if self.graph.edges else ()

    def examples(self, numbers: Sequence[int]) -> dict[str, tuple[FeatureExamples, ...]]:
        """Dataset examples of the layers that were passed over."""
        return {self.layers[k].basis.name: self.layers[k].shown() for k in numbers}


def _rendering(rendering: Rendering, source: Features) -> Rendering:
    """For one layer: of pictures, with the part of them that each of its positions depends on."""
    if not isinstance(rendering, Images):
        return rendering
    fields = receptive_fields(source.network, source.index)
    return rendering if fields is None or fields.shape[1] != 2 else replace(rendering, fields=fields)


def _has_classes(batches: Batches) -> bool:
    """Whether samples have one label each, of few different ones; looked at in the first of the data."""
    try:
        _, _, labels = next(batches.labelled_chunks(4096))
    except InterbasisError:
        return False
    return labels.ndim == 1 and len(labels.unique()) <= min(MAX_CLASSES, len(labels) // 2)


def _values(layer: "_Layer", f: Tensor, counted: CountedTokens) -> Tensor:  # [n, T, features]
    """The features of one layer, at their mean for tokens that did not count when they were found.

    Such tokens are far from all that the features were made for, and would be the extremes of every one.
    """
    values, mean = layer.basis.to_features(f), layer.basis.mean
    if counted.all or mean is None:
        return values
    index, network = layer.source.index, layer.source.network
    counts = counted.at(index, network.nodes[index], f)
    return torch.where(counts[..., None], values, layer.basis.to_features(mean.to(f)))


def _chunks(batches: Batches, size: int, labelled: bool, start: int) -> Iterator[Chunk]:
    """Samples without values yet, behind the first ``start``."""
    unlabelled = ((first, inputs, None) for first, inputs in batches.chunks(size, start))
    for first, inputs, labels in batches.labelled_chunks(size, start) if labelled else unlabelled:
        yield Chunk(first, inputs, labels, inputs.new_empty(0))


class _Layer(LayerSums):
    """What is collected about one layer, and what is said of it."""

    def describe(
        self,
        network: Network,
        shown: Presentation,
        index: TokenIndex | None,
        moved: Sequence[MeanEffects] | None,
    ) -> LayerFeatures:
        labels = fourier(network, self.basis) if network.modulus else None
        effects: list[Effects | None] = [None] * len(self.chosen)
        if not self._is_output():
            effects = list(direct_effects(network, self.basis, shown.outputs, features=self.chosen))
        histograms, positions = self.histograms.result(), self.positions.result()
        areas, examples = self.areas(), self.shown()
        tokens = self.tokens.shares(index) if index is not None and self.chosen else {}
        name = shown.rendering.decode if isinstance(shown.rendering, Tokens) else str
        features = []
        for k, j in enumerate(self.chosen):
            classes = self._classes(k, areas, shown.classes) if areas is not None else None
            placed = None
            if len(positions.means) > 1:
                means = tuple(short(v) for v in positions.means[:, k].tolist())
                placed = PositionStatistics(means=means, share=short(positions.share[k].item()))
            feature = Feature(
                index=j,
                label="",
                histogram=histograms[k],
                fourier=labels[j].record() if labels else None,
                classes=classes,
                positions=placed,
                effects=effects[k],
                mean_effects=moved[k] if moved else None,
            )
            term = labels[j] if labels else None
            isolated = self.basis.first_feature <= j < self.basis.first_feature + self.basis.isolated
            shares = {kind: of_kind[k] for kind, of_kind in tokens.items()}
            known = evidence(feature, term, shares, name, isolated)
            feature = feature.model_copy(update={"evidence": known})
            features.append(feature.model_copy(update={"label": label(feature, term, examples[k])}))
        counts = None
        if labels is not None:
            counted = monosemantic(labels, constant=self.basis.constant)
            counts = MonosemanticCount(
                paper=counted.paper, without_constant=counted.without_constant, top=counted.top
            )
        return LayerFeatures(name=self.basis.name, features=tuple(features), monosemantic=counts)

    def shown(self) -> tuple[FeatureExamples, ...]:
        """Examples of the features that are chosen."""
        examples = self.examples.result(range(len(self.chosen)))
        return tuple(
            FeatureExamples(index=j, bands=one.bands) for j, one in zip(self.chosen, examples, strict=True)
        )

    def _is_output(self) -> bool:
        """Whether the features are the outputs themselves, each of which would push itself."""
        network, basis = self.source.network, self.basis
        last = self.source.index == len(network.sections) and all(s.one_by_one for s in network.tail)
        return last and (
            basis.identity or torch.equal(basis.transform, torch.eye(basis.width).to(basis.transform))
        )

    def _classes(
        self, k: int, areas: tuple[list[int], Tensor], names: Sequence[str]
    ) -> ClassStatistics | None:
        if self.classes is None:
            return None
        classes, area = areas
        return ClassStatistics(
            names=tuple(names[c] if c < len(names) else str(c) for c in classes),
            means=tuple(short(self.classes.means[c, k].item()) for c in classes),
            auroc=tuple(short(v) for v in area[:, k].tolist()),
            explained=short(self.classes.adjusted[k].item()),
        )
