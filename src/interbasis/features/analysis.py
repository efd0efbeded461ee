"""All there is to say about a run's features, in one pass over the data for all layers.

Which analyses are made depends on the network and the data: Fourier labels for modular addition, probes where
samples have a class, positions where layers have several; histograms, direct effects and examples always.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from interbasis.data.batches import Batches, Data
from interbasis.features.activations import Chunk, checked, chunk_size, of
from interbasis.features.collecting import LayerSums, restore_all, state_of
from interbasis.features.contexts import Rendering, Rows, Tokens, short
from interbasis.features.effects import Effects, direct_effects
from interbasis.features.examples import Plan, default_rendering
from interbasis.features.fourier import FourierLabel, fourier
from interbasis.features.monosemanticity import monosemantic
from interbasis.features.probes import separation
from interbasis.features.relevance import idle
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.models.modadd import modulus
from interbasis.network.network import Network
from interbasis.runtime.checkpoints import NO_CHECKPOINTS, Checkpoints
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.progress import Progress, silent

CLASSES = 64
"""Labels with more different values than this (modular addition's, tokens) are not treated as classes."""


@dataclass(frozen=True)
class Request:
    """What is wanted of an analysis."""

    features: int | None = 32
    """Features of each layer, the constant left out; None is all."""
    plan: Plan | None = None
    rendering: Rendering | None = None
    output_names: Sequence[str] | None = None
    class_names: Sequence[str] = ()


def analyse(
    graph: InteractionGraph, network: Network, data: Data, request: Request | None = None,
    progress: Progress = silent, kept: Checkpoints = NO_CHECKPOINTS,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """(features, examples) of a run as plain data, ready to be stored and shown.

    ``kept`` keeps unfinished work: the pass chunk by chunk, then what is said of every layer.
    """
    request = request or Request()
    if graph.provenance.model_fingerprint != network.fingerprint():
        raise InterbasisError(
            "the network is not the one that this run was built from: their weights differ; open the "
            "checkpoint of the build"
        )
    batches = data if isinstance(data, Batches) else Batches(data)
    request = _completed(request, network, batches)
    computing = network.to(graph.config.torch_dtype)
    layers = [_Layer.of(computing, layer, request) for layer in graph.layers]
    labelled = _has_classes(batches)
    checkpoint = kept.checkpoint("pass", len(batches))
    restore_all(layers, checkpoint.tensors)
    for chunk in _passes(layers, batches, labelled, checkpoint.done):
        for layer, values in zip(layers, chunk.values, strict=True):
            layer.add(Chunk(chunk.first, chunk.inputs, chunk.labels, values))
        done = chunk.first + len(chunk.inputs) - batches.offset
        checkpoint.save(done, lambda: (state_of(layers), {}))
        progress("features", done, len(batches))
    found: dict[str, Any] = {"layers": []}
    for k, layer in enumerate(layers):
        found["layers"].append(_described(layer, k, computing, request, kept))
        progress("what they do", k + 1, len(layers))
    if graph.edges:
        found["idle"] = [asdict(one) for one in idle(graph)]
    assert request.rendering is not None
    shown = [{"name": layer.basis.name, "features": layer.shown()} for layer in layers]
    return found, {"kind": request.rendering.kind, "layers": shown}


def _described(
    layer: "_Layer", k: int, network: Network, request: Request, kept: Checkpoints
) -> dict[str, Any]:
    return kept.remember(f"layer.{k}", lambda: ({}, layer.describe(network, request)))[1]


def _completed(request: Request, network: Network, batches: Batches) -> Request:
    """Names and renderings that follow from the network and the data."""
    rendering, names = request.rendering, request.output_names
    if network.family == "modadd":
        p = modulus(network)
        texts = [*map(str, range(p)), "="]
        names = names or texts
        rendering = rendering or Tokens(lambda token: texts[token])
    if rendering is None:
        rendering = default_rendering(batches.first())
        rendering = Rows(request.class_names) if isinstance(rendering, Rows) else rendering
    names = names or request.class_names or None
    return replace(request, rendering=rendering, output_names=names)


def _has_classes(batches: Batches) -> bool:
    """Whether samples have one label each, of few different ones; looked at in the first of the data."""
    try:
        _, _, labels = next(batches.labelled_chunks(4096))
    except InterbasisError:
        return False
    return labels.ndim == 1 and len(labels.unique()) <= min(CLASSES, len(labels) // 2)


@dataclass(frozen=True, eq=False)
class _Pass:
    first: int
    inputs: Tensor
    labels: Tensor | None
    values: list[Tensor]


def _passes(layers: "list[_Layer]", batches: Batches, labelled: bool, start: int) -> Iterator[_Pass]:
    """The features of all layers, chunk by chunk, from one run of the network, behind ``start`` samples."""
    network = layers[0].source.network
    size = min(chunk_size(layer.source, batches) for layer in layers)
    unlabelled = ((first, inputs, None) for first, inputs in batches.chunks(size, start))
    for first, inputs, labels in batches.labelled_chunks(size, start) if labelled else unlabelled:
        with torch.no_grad():
            activations = network.activations(inputs.to(network.device))
        values = [
            checked(layer.basis.features_of(f), inputs, batches.name, first)
            for f, layer in zip(activations, layers, strict=True)
        ]
        yield _Pass(first, inputs, labels, values)


class _Layer(LayerSums):
    """What is collected about one layer, and what is said of it."""

    @classmethod
    def of(cls, network: Network, layer: LayerBasis, request: Request) -> "_Layer":
        return cls(of(network, layer), request.features, request.plan, request.rendering)

    def describe(self, network: Network, request: Request) -> dict[str, Any]:
        labels = fourier(network, self.basis) if network.family == "modadd" else None
        effects: list[Effects | None] = [None] * len(self.chosen)
        if not self._is_output():
            effects = direct_effects(network, self.basis, request.output_names, features=self.chosen)
        histograms, places = self.histograms.result(), self.positions.result()
        areas = self.areas()
        result: dict[str, Any] = {"name": self.basis.name, "features": []}
        for k, j in enumerate(self.chosen):
            feature: dict[str, Any] = {"index": j, "histogram": asdict(histograms[k])}
            if labels is not None:
                terms = [asdict(t) | {"phase": t.phases[0]} for t in labels[j].terms]
                feature["fourier"] = {"form": labels[j].form, "terms": terms}
            if areas is not None and self.classes is not None:
                feature["classes"] = self._classes(k, areas, request.class_names)
            if len(places.means) > 1:
                means = [short(v) for v in places.means[:, k].tolist()]
                feature["positions"] = {"means": means, "share": short(places.share[k].item())}
            if (pushed := effects[k]) is not None:
                feature["effects"] = asdict(pushed)
            feature["label"] = _label(feature, labels[j] if labels else None, effects[k])
            result["features"].append(feature)
        if labels is not None:
            counts = monosemantic(labels, constant=self.basis.constant)
            result["monosemantic"] = {
                "paper": counts.paper, "without_constant": counts.without_constant, "top": counts.top,
            }  # fmt: skip
        return result

    def shown(self) -> list[dict[str, Any]]:
        """Examples of the features that are chosen."""
        found = self.examples.result(range(len(self.chosen)))
        return [row | {"index": j} for j, row in zip(self.chosen, found, strict=True)]

    def _is_output(self) -> bool:
        """Whether the features are the outputs themselves, each of which would push itself."""
        network, basis = self.source.network, self.basis
        last = self.source.index == len(network.sections) and all(s.one_by_one for s in network.tail)
        return last and (
            basis.identity or torch.equal(basis.transform, torch.eye(basis.width).to(basis.transform))
        )

    def _classes(self, k: int, areas: tuple[list[int], Tensor], names: Sequence[str]) -> dict[str, Any]:
        assert self.classes is not None
        classes, area = areas
        return {
            "names": [names[c] if c < len(names) else str(c) for c in classes],
            "means": [short(self.classes.means[c, k].item()) for c in classes],
            "auroc": [short(v) for v in area[:, k].tolist()],
            "explained": short(self.classes.explained[k].item()),
        }


def _label(feature: dict[str, Any], fourier: FourierLabel | None, effects: Effects | None) -> str:
    """The one line that says most about a feature."""
    if fourier is not None:
        return fourier.text
    if feature.get("positions", {}).get("share", 0) >= 0.5:
        return f"position ({feature['positions']['share']:.0%})"
    if "classes" in feature:
        area = torch.tensor(feature["classes"]["auroc"])
        best = int(separation(area).argmax())
        sign = "+" if area[best] >= 0.5 else "−"
        return f"{sign}{feature['classes']['names'][best]} (AUROC {separation(area)[best]:.2f})"
    if effects is not None:
        return f"↑ {effects.up[0].name} ↓ {effects.down[0].name}"
    return ""
