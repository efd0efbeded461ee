"""Windows of sections that are built one after the other, because all together exceed the memory.

A window is a network of its own whose inputs are the activations before it. It requires the features of its
last node layer, which the window after it has found. Its result goes to a file.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interbasis.base.progress import Progress
from interbasis.compute.activation_cache import ActivationCache
from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Executor, chunk_size
from interbasis.data.batches import Batches
from interbasis.data.samples import Pair, Samples
from interbasis.graph.layer_basis import LayerBasis, StoredBasis, StoredTensors, dump_layers, load_layers
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build import build_window
from interbasis.lib.build_data import BuildData
from interbasis.lib.window import BuiltWindow, Window
from interbasis.network.prefix import Prefix


def build_windows(whole: Window, config: BuildConfig) -> BuiltWindow:
    """Build the windows from the last to the first; matrices stay in files where the build has a folder."""
    executor, checkpoints = whole.executor, whole.executor.checkpoints
    layers: list[LayerBasis] = []
    matrices: dict[str, list[Any]] = {"edges": [], "edge_errors": []}  # tensors, or their files and names
    changed: dict[str, float] = {}
    starts = tuple(first for first, _ in executor.windows[1:])
    with ExitStack() as stack:
        caches = {
            batches: stack.enter_context(executor.caching(batches, starts))
            for batches in set(whole.data.by_name.values())
        }
        for number in reversed(range(len(executor.windows))):
            window = _window(whole, number, caches, end=layers[0] if layers else None)
            name = f"built.{window.first}"
            state = checkpoints.remember(
                name, partial(_state, window, config), called=f"window {window.first}"
            )
            window.executor.checkpoints.forget()
            found, file = load_layers(state), checkpoints.path(name)
            if file is not None:
                found = [
                    layer if layer.identity else StoredBasis(layer, file, f"{k}.")
                    for k, layer in enumerate(found)
                ]
            layers[:0] = found
            changed = state[1].get("changed_choices", {}) | changed
            for kind, places in matrices.items():
                keys = [
                    key for k in range(len(window.network.sections)) if (key := f"{kind}.{k}") in state[0]
                ]
                places[:0] = [state[0][key] if file is None else (file, key) for key in keys]
    edges, errors = matrices.values() if checkpoints.folder is None else map(StoredTensors, matrices.values())
    return BuiltWindow(layers, config, edges, errors, changed)


def _window(
    whole: Window, number: int, caches: Mapping[Batches, ActivationCache], end: LayerBasis | None
) -> Window:
    """The sections of a window as a network of their own."""
    executor = whole.executor
    first, last = executor.windows[number]
    sections = executor.network.sections[first:last]
    network = replace(executor.network, prefix=GivenActivations(), sections=sections, tail=(), remake=None)
    activations = {batches: window_data(batches, cache, first, executor) for batches, cache in caches.items()}
    label = f"part {number + 1} of {len(executor.windows)}"
    inner = executor.within(f"window.{first}", network)
    return Window(
        replace(inner, progress=partial(_labelled, executor.progress, label)),
        BuildData(*(activations[batches] for batches in whole.data.by_name.values())),
        replace(whole.counted, limits=whole.counted.limits[first : last + 1]),
        first,
        end,
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


def _state(window: Window, config: BuildConfig) -> State:
    """Bases and edges of a window; its last layer belongs to the window after it."""
    built = build_window(window, config)
    tensors, values = dump_layers(built.layers if window.end is None else built.layers[:-1])
    for kind, matrices in (("edges", built.edges), ("edge_errors", built.errors)):
        tensors |= {f"{kind}.{k}": matrix for k, matrix in enumerate(matrices)}
    return tensors, values | {"changed_choices": built.changed_choices}
