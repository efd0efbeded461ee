"""Sections that are built one window after the other, because all of them together exceed the memory.

A window is a network of its own whose inputs are the activations before it. It requires the features of its
last node layer, which the window after it has found. Its result goes to a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from interbasis.compute.checkpoints import State
from interbasis.data.batches import Batches
from interbasis.data.samples import Pair, Samples
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.layer_state import LayerHeader, header_of, layer_of
from interbasis.graph.store import layer_entries
from interbasis.graph.stored_basis import StoredBasis
from interbasis.lib.activation_cache import ActivationCache
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.lib.statistics import chunk_size
from interbasis.network.network import Network, Prefix


class GivenActivations(Prefix):
    """The activations of the first node layer, as they are given."""

    def forward(self, inputs: Tensor) -> Tensor:  # [n, T, width]
        return inputs


def window_network(network: Network, first: int, last: int) -> Network:
    """The sections first … last − 1 as a network whose inputs are activations."""
    return replace(
        network, prefix=GivenActivations(), sections=network.sections[first:last], tail=(), remake=None
    )


def window_data(network: Network, batches: Batches, cache: ActivationCache, first: int) -> Batches:
    """Activations at a node layer as data, from the cache or computed; samples and order are the same."""
    chunk = chunk_size(network, batches)

    def read(start: int, stop: int) -> Pair:
        inputs, rows = batches.between(start, stop), []
        lengths = [inputs.shape[1]] * len(inputs) if batches.lengths is None else batches.lengths[start:stop]
        runs = torch.as_tensor(lengths).unique_consecutive(return_counts=True)
        at = 0
        for length, count in zip(*(one.tolist() for one in runs), strict=True):
            some = inputs[at : at + count]
            some = some if batches.lengths is None else some[:, :length]
            f = cache.activations_at(first, start + at, some.to(network.device))
            rows.append(
                torch.nn.functional.pad(f, (0, 0, 0, inputs.shape[1] - length))
                if batches.lengths is not None
                else f
            )
            at += count
        return torch.cat(rows), torch.zeros(len(inputs), dtype=torch.int64)

    samples = Samples(len(batches), read, batch=chunk, lengths=batches.lengths)
    window = Batches(samples, batches.name, batches.offset).divided(batches.team, None)
    window.chunk_bytes = batches.chunk_bytes
    return window


def window_counted(counted: CountedTokens, first: int, last: int) -> CountedTokens:
    """The tokens that count at the window's layers."""
    return replace(counted, limits=counted.limits[first : last + 1])


@dataclass(frozen=True, eq=False)
class Found:
    """Layers and what was measured between them."""

    layers: list[LayerBasis]
    edges: list[Tensor]
    errors: list[Tensor]

    def state(self, first: int, with_last: bool) -> State:
        """All of it, by numbers in the network; the last layer belongs to the next window."""
        layers = self.layers if with_last else self.layers[:-1]
        tensors = {
            entry.name: entry.read().clone()
            for k, layer in enumerate(layers)
            for entry in layer_entries(layer, first + k)
        }
        for name, many in (("edges", self.edges), ("edge_errors", self.errors)):
            tensors |= {f"{name}.{first + k}": tensor for k, tensor in enumerate(many)}
        return tensors, {"layers": [header_of(layer).model_dump(mode="json") for layer in layers]}


def stored_layers(state: State, first: int, file: Path | None) -> list[LayerBasis]:
    """The layers of a window; matrices stay in its file, where there is one."""
    tensors, values = state
    layers: list[LayerBasis] = []
    for k, header in enumerate(values["layers"]):
        prefix = f"layers.{first + k}."
        layer = layer_of(LayerHeader.model_validate(header), prefix, tensors)
        layers.append(layer if file is None or layer.identity else StoredBasis(layer, file, prefix))
    return layers


def names_of(state: State, name: str) -> Sequence[str]:
    """The tensors called name.k, in their order."""
    return sorted(
        (key for key in state[0] if key.startswith(f"{name}.")), key=lambda key: int(key.split(".")[1])
    )
