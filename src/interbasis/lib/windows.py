"""Windows of sections that are built one after the other, because all together exceed the memory.

A window is a network of its own whose inputs are the activations before it. It requires the features of its
last node layer, which the window after it has found. Its result goes to a file.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from interbasis.base.progress import Progress
from interbasis.compute.activation_cache import ActivationCache
from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Executor, chunk_size
from interbasis.data.batches import Batches
from interbasis.data.samples import Pair, Samples
from interbasis.graph.layer_basis import (
    LayerBasis,
    LayerHeader,
    StoredBasis,
    StoredTensors,
    layer_entries,
)
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build import BuiltPart, Part, build_part
from interbasis.lib.build_data import BuildData
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Prefix

Place = tuple[Path, str] | Tensor
"""A tensor in memory, or a file and the name of a tensor in it."""


def build_windows(
    data: BuildData, counted: CountedTokens, config: BuildConfig, executor: Executor
) -> tuple[list[LayerBasis], Sequence[Tensor], Sequence[Tensor]]:
    """Build the executor's windows from the last to the first.

    Returns:
        Layers, edges and errors of edges; those of a build with a folder stay in its files.
    """
    layers: list[LayerBasis] = []
    edges: list[Place] = []
    errors: list[Place] = []
    starts = tuple(first for first, _ in executor.windows[1:])
    with ExitStack() as stack:
        caches = {
            id(batches): stack.enter_context(executor.caching(batches, starts))
            for batches in set(data.by_name.values())
        }
        for number, (first, last) in reversed(list(enumerate(executor.windows))):
            label = f"part {number + 1} of {len(executor.windows)}"
            part = _part(data, counted, (first, last), caches, executor, label)
            part = replace(part, end=layers[0] if layers else None)
            name, checkpoints = f"window.{first}", executor.checkpoints
            state = checkpoints.remember(name, partial(_state, part, config))
            file = checkpoints.path(name)
            part.executor.checkpoints.forget()
            layers[:0] = _stored_layers(state, first, file)
            for places, kind in ((edges, "edges"), (errors, "edge_errors")):
                keys = _numbered(state, kind)
                places[:0] = [state[0][key] if file is None else (file, key) for key in keys]
    return layers, _tensors(edges), _tensors(errors)


def _part(
    data: BuildData,
    counted: CountedTokens,
    window: tuple[int, int],
    caches: dict[int, ActivationCache],
    executor: Executor,
    label: str,
) -> Part:
    """The sections of a window as a network of their own."""
    first, last = window
    whole = executor.network
    network = replace(
        whole, prefix=GivenActivations(), sections=whole.sections[first:last], tail=(), remake=None
    )
    activations = {
        id(batches): window_data(batches, caches[id(batches)], first, executor)
        for batches in data.by_name.values()
    }
    inner = executor.within(f"sections.{first}", network)
    return Part(
        replace(inner, progress=partial(_labelled, executor.progress, label)),
        BuildData(*(activations[id(batches)] for batches in data.by_name.values())),
        replace(counted, limits=counted.limits[first : last + 1]),
        first,
    )


def _labelled(progress: Progress, label: str, phase: str, done: int, total: int) -> None:
    progress(f"{phase}, {label}", done, total)


class GivenActivations(Prefix):
    """The activations of the first node layer, as they are given."""

    def forward(self, inputs: Tensor) -> Tensor:  # [n, T, width]
        return inputs


def window_data(batches: Batches, cache: ActivationCache, first: int, executor: Executor) -> Batches:
    """Activations at a node layer as data, from the cache or computed; samples and order are the same."""
    network = executor.network
    chunk = chunk_size(network, batches, limit=executor.chunk_bytes)

    def read(start: int, stop: int) -> Pair:
        inputs, rows = batches.between(start, stop), []
        if batches.lengths is None:
            f = cache.activations_at(first, start, inputs.to(network.device))
            return f, torch.zeros(len(inputs), dtype=torch.int64)
        lengths, counts = batches.lengths[start:stop].unique_consecutive(return_counts=True)
        for length, part in zip(lengths.tolist(), inputs.split(counts.tolist()), strict=True):
            f = cache.activations_at(first, start, part[:, :length].to(network.device))
            rows.append(torch.nn.functional.pad(f, (0, 0, 0, inputs.shape[1] - length)))
            start += len(part)
        return torch.cat(rows), torch.zeros(len(inputs), dtype=torch.int64)

    samples = Samples(len(batches), read, batch=chunk, lengths=batches.lengths)
    return Batches(samples, batches.name, batches.offset)


def _state(part: Part, config: BuildConfig) -> State:
    """Bases and edges of a part, by numbers in the network; the last layer belongs to the next window."""
    built: BuiltPart = build_part(part, config)
    first = part.first
    layers = built.layers if part.end is None else built.layers[:-1]
    tensors = {
        entry.name: entry.read().clone()
        for k, layer in enumerate(layers)
        for entry in layer_entries(layer, f"layers.{first + k}.")
    }
    for name, matrices in (("edges", built.edges), ("edge_errors", built.errors)):
        tensors |= {f"{name}.{first + k}": tensor for k, tensor in enumerate(matrices)}
    return tensors, {"layers": [LayerHeader.from_layer(layer).model_dump(mode="json") for layer in layers]}


def _stored_layers(state: State, first: int, file: Path | None) -> list[LayerBasis]:
    """The layers of a window; matrices stay in its file, where there is one."""
    tensors, values = state
    layers: list[LayerBasis] = []
    for k, header in enumerate(values["layers"]):
        prefix = f"layers.{first + k}."
        layer = LayerHeader.model_validate(header).to_layer(prefix, tensors)
        layers.append(layer if file is None or layer.identity else StoredBasis(layer, file, prefix))
    return layers


def _numbered(state: State, name: str) -> Sequence[str]:
    """The tensors called name.k, in their order."""
    return sorted(
        (key for key in state[0] if key.startswith(f"{name}.")), key=lambda key: int(key.split(".")[1])
    )


def _tensors(places: Sequence[Place]) -> Sequence[Tensor]:
    """Tensors in memory, or left in their files."""
    stored = [place for place in places if isinstance(place, tuple)]
    return StoredTensors(stored) if stored else [place for place in places if isinstance(place, Tensor)]
