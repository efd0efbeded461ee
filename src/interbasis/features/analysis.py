"""All there is to say about a run's features, in one pass over the data for all layers.

Which analyses are made depends on the network and the data: Fourier labels for modular addition, probes where
samples have a class, positions where layers have several; histograms, direct effects and examples always.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from interbasis.basis import LayerBasis
from interbasis.data.batches import Batches, Data
from interbasis.errors import InterbasisError
from interbasis.features.activations import Chunk, Features, checked, chunk_size, of
from interbasis.features.contexts import Rendering, Rows, Tokens, short
from interbasis.features.effects import Effects, direct_effects
from interbasis.features.examples import Examples, Plan, default_rendering
from interbasis.features.fourier import FourierLabel, fourier
from interbasis.features.histograms import HistogramSums
from interbasis.features.moments import Grouped
from interbasis.features.monosemanticity import monosemantic
from interbasis.features.positions import PositionSums
from interbasis.features.probes import auroc, separation
from interbasis.features.relevance import idle
from interbasis.graph import InteractionGraph
from interbasis.models.modadd import modulus
from interbasis.network import Network
from interbasis.progress import Progress, silent

CLASSES = 64
"""Labels with more different values than this (modular addition's, tokens) are not treated as classes."""
PROBED = 2**16
"""Samples that AUROC is taken from, at most: the first of the data, since ranks need all values at once."""


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
    progress: Progress = silent,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """(features, examples) of a run as plain data, ready to be stored and shown."""
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
    for chunk in _passes(layers, batches, labelled, progress):
        for layer, values in zip(layers, chunk.values, strict=True):
            layer.add(Chunk(chunk.first, chunk.inputs, chunk.labels, values))
    described = [layer.describe(computing, request) for layer in layers]
    found: dict[str, Any] = {"layers": described}
    if graph.edges:
        found["idle"] = [asdict(one) for one in idle(graph)]
    assert request.rendering is not None
    shown = [{"name": layer.basis.name, "features": layer.examples.result(layer.chosen)} for layer in layers]
    return found, {"kind": request.rendering.kind, "layers": shown}


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


def _passes(layers: "list[_Layer]", batches: Batches, labelled: bool, progress: Progress) -> Iterator[_Pass]:
    """The features of all layers, chunk by chunk, from one run of the network."""
    network = layers[0].source.network
    size = min(chunk_size(layer.source, batches) for layer in layers)
    some = batches.labelled_chunks(size) if labelled else ((a, b, None) for a, b in batches.chunks(size))
    for first, inputs, labels in some:
        with torch.no_grad():
            activations = network.activations(inputs.to(network.device))
        values = [
            checked(f @ layer.basis.transform.to(f).T, inputs, batches.name, first)
            for f, layer in zip(activations, layers, strict=True)
        ]
        yield _Pass(first, inputs, labels, values)
        progress("features", first + len(inputs) - batches.offset, len(batches))


class _Layer:
    """What is collected about one layer."""

    def __init__(self, source: Features, request: Request):
        self.source, self.basis = source, source.layer
        first = 1 if self.basis.constant else 0
        last = self.basis.features if request.features is None else first + request.features
        self.chosen = list(range(first, min(last, self.basis.features)))
        self.examples = Examples(request.plan, request.rendering)
        self.histograms, self.positions = HistogramSums(), PositionSums()
        self.classes: Grouped | None = None
        self.probed: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def of(cls, network: Network, layer: LayerBasis, request: Request) -> "_Layer":
        return cls(of(network, layer), request)

    def add(self, chunk: Chunk) -> None:
        self.examples.add(chunk)
        self.histograms.add(chunk)
        self.positions.add(chunk)
        if chunk.labels is not None:
            found = Grouped.of(chunk.values[:, -1], chunk.labels)
            self.classes = found if self.classes is None else self.classes.merge(found)
            if chunk.first < PROBED:
                self.probed.append((chunk.values[:, -1], chunk.labels))

    def describe(self, network: Network, request: Request) -> dict[str, Any]:
        labels = fourier(network, self.basis) if network.family == "modadd" else None
        effects: list[Effects | None] = [None] * self.basis.features
        if not self._is_output():
            effects = direct_effects(network, self.basis, request.output_names)
        histograms, places = self.histograms.result(), self.positions.result()
        areas = self._areas()
        result: dict[str, Any] = {"name": self.basis.name, "features": []}
        for j in self.chosen:
            feature: dict[str, Any] = {"index": j, "histogram": asdict(histograms[j])}
            if labels is not None:
                terms = [asdict(t) | {"phase": t.phases[0]} for t in labels[j].terms]
                feature["fourier"] = {"form": labels[j].form, "terms": terms}
            if areas is not None and self.classes is not None:
                feature["classes"] = self._classes(j, areas, request.class_names)
            if len(places.means) > 1:
                means = [short(v) for v in places.means[:, j].tolist()]
                feature["positions"] = {"means": means, "share": short(places.share[j].item())}
            if (pushed := effects[j]) is not None:
                feature["effects"] = asdict(pushed)
            feature["label"] = _label(feature, labels[j] if labels else None, effects[j])
            result["features"].append(feature)
        if labels is not None:
            counts = monosemantic(labels, constant=self.basis.constant)
            result["monosemantic"] = {
                "paper": counts.paper, "without_constant": counts.without_constant, "top": counts.top,
            }  # fmt: skip
        return result

    def _is_output(self) -> bool:
        """Whether the features are the outputs themselves, each of which would push itself."""
        last = self.source.index == len(self.source.network.sections) and not self.source.network.tail
        return last and torch.equal(
            self.basis.transform, torch.eye(self.basis.width).to(self.basis.transform)
        )

    def _areas(self) -> tuple[list[int], Tensor] | None:
        """(classes, AUROC [classes, features]) of each class against the others."""
        if not self.probed:
            return None
        values, labels = (torch.cat(parts) for parts in zip(*self.probed, strict=True))
        values, labels = values[labels != -100], labels[labels != -100]
        classes = labels.unique()
        return None if len(classes) < 2 else (classes.tolist(), auroc(values, labels[:, None] == classes))

    def _classes(self, j: int, areas: tuple[list[int], Tensor], names: Sequence[str]) -> dict[str, Any]:
        assert self.classes is not None
        classes, area = areas
        return {
            "names": [names[c] if c < len(names) else str(c) for c in classes],
            "means": [short(self.classes.means[c, j].item()) for c in classes],
            "auroc": [short(v) for v in area[:, j].tolist()],
            "explained": short(self.classes.explained[j].item()),
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
