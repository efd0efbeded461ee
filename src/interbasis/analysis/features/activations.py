"""Feature activations over data, chunk by chunk: what every analysis here reads.

A *source* is any function from inputs to values [n, S, features]: the features of a node layer (`of`), or a
hook on somebody else's model. Values belong to the last S of a sample's positions.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.data.batches import Batches, Data
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import Network

Source = Callable[[Tensor], Tensor]

CHUNK_BYTES = 2**24
"""What the values of one chunk may weigh, as float64."""


@dataclass(frozen=True, eq=False)
class Features:
    """The features f̂ = C f of one node layer as a function of the network's inputs, in its dtype."""

    network: Network
    layer: LayerBasis
    index: int
    """Which node layer of the network it is."""

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:  # [n, …] -> [n, S, features]
        f = self.network.activations_at(self.index, inputs.to(self.network.device))
        return self.layer.to_features(f)


def of(network: Network, layer: LayerBasis) -> Features:
    """The features of a node layer, as a source of values.

    Args:
        network: The network.
        layer: A basis; its name says which node layer it belongs to.

    Returns:
        A function from inputs to values [samples, positions, features].

    Raises:
        InterbasisError: The network has no node layer of that name and width.
    """
    if layer.name not in network.layers:
        raise InterbasisError(
            f"the network has no node layer {layer.name!r}; it has {', '.join(network.layers)}"
        )
    index = network.layers.index(layer.name)
    if network.nodes[index].width != layer.width:
        raise InterbasisError(
            f"the basis of {layer.name!r} is for {layer.width} coordinates, but the network has "
            f"{network.nodes[index].width} there; use the network that the basis was built for"
        )
    return Features(network, layer, index)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some samples in a row, with the values of all features."""

    first: int
    """Index of the first sample in the data."""
    inputs: Tensor  # [n, …]
    labels: Tensor | None  # [n] or [n, T]
    values: Tensor  # [n, S, features]


def chunks(
    source: Source,
    data: Data,
    *,
    labelled: bool = False,
    progress: Progress = silent,
    phase: str = "features",
) -> Iterator[Chunk]:
    """Pass once over the data, in chunks whose values weigh at most `CHUNK_BYTES`."""
    batches = data if isinstance(data, Batches) else Batches(data)
    size = chunk_size(source, batches)
    if labelled:
        for first, inputs, labels in batches.tracked(batches.labelled_chunks(size), phase, progress):
            yield Chunk(first, inputs, labels, values_of(source, inputs, batches.name, first))
    else:
        for first, inputs in batches.tracked(batches.chunks(size), phase, progress):
            yield Chunk(first, inputs, None, values_of(source, inputs, batches.name, first))


def chunk_size(source: Source, batches: Batches) -> int:
    """How many samples a chunk has: values, inputs and the network's own activations are all kept small."""
    one = batches.first()
    weight = values_of(source, one, batches.name, 0).numel()
    if isinstance(source, Features):
        sections = source.network.sections[: source.index]
        weight += sum(node.width * math.prod(node.grid or ()) for node in source.network.nodes)
        weight += sum(len(s.read) * math.prod(s.target.grid or ()) for s in sections)
    return max(1, CHUNK_BYTES // (8 * max(weight, one.numel())))


@torch.no_grad()
def values_of(source: Source, inputs: Tensor, name: str, first: int) -> Tensor:  # [n, S, features]
    """What the source answers; rows without positions become [n, 1, ·]."""
    return checked(source(inputs), inputs, name, first)


def checked(values: Tensor, inputs: Tensor, name: str, first: int) -> Tensor:  # [n, S, features]
    """Values of samples from number ``first`` on: of the right shape, finite, float64, on the CPU."""
    if values.ndim == 2:
        values = values[:, None]
    if values.ndim != 3 or len(values) != len(inputs):
        raise InterbasisError(
            f"expected values of shape [samples, positions, features] for {len(inputs)} samples from the "
            f"source, received {list(values.shape)}"
        )
    values = values.detach().cpu().double()
    if not values.isfinite().all():
        sample = first + int((~values.isfinite()).flatten(1).any(1).int().argmax())
        raise InterbasisError(
            f"features are not finite (NaN or infinite), first for sample {sample} of the {name}; "
            "look at that input or at the model's weights"
        )
    return values


def collect(source: Source, data: Data) -> Tensor:  # [n · S, features]
    """All values at once, for data that fit in memory.

    Args:
        source: `of(network, layer)`, or a function from inputs to values.
        data: Inputs.

    Returns:
        One row per sample and position, [rows, features].
    """
    return torch.cat([chunk.values.flatten(0, 1) for chunk in chunks(source, data)])
