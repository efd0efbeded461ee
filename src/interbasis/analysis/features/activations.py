"""Feature activations over data, chunk by chunk: the input of every analysis in this package.

A *source* is any function from inputs to values [n, S, features]: the features of a node layer
(`FeatureReader`), or a hook on another model. Values belong to the last S positions of a sample.
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
"""Bytes of the values of one chunk, as float64."""


@dataclass(frozen=True, eq=False)
class FeatureReader:
    """The features f̂ = C f of a node layer as a function of the network's inputs, in the network's dtype.

    Args:
        network: The network.
        layer: A basis; its name says which node layer it belongs to.

    Raises:
        InterbasisError: The network has no node layer of that name and width.
    """

    network: Network
    layer: LayerBasis

    def __post_init__(self) -> None:
        name, layers = self.layer.name, self.network.layers
        if name not in layers:
            raise InterbasisError(f"the network has no node layer {name!r}; it has {', '.join(layers)}")
        width = self.network.nodes[self.index].width
        if width != self.layer.width:
            raise InterbasisError(
                f"the basis of {name!r} is for {self.layer.width} coordinates, but the network has "
                f"{width} there; use the network that the basis was built for"
            )

    @property
    def index(self) -> int:
        """Index of the node layer in the network."""
        return self.network.layers.index(self.layer.name)

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:  # [n, …] -> [n, S, features]
        f = self.network.activations_at(self.index, inputs.to(self.network.device))
        return self.layer.to_features(f)


@dataclass(frozen=True, eq=False)
class FeatureChunk:
    """Consecutive samples with the values of all features."""

    first: int
    """Index of the first sample in the data."""
    inputs: Tensor  # [n, …]
    labels: Tensor | None  # [n] or [n, T]
    values: Tensor  # [n, S, features]

    @classmethod
    def validated(
        cls, first: int, inputs: Tensor, labels: Tensor | None, values: Tensor, data: str
    ) -> "FeatureChunk":
        """The chunk with values as float64 on the CPU, of the shape [n, S, features] and finite.

        Rows without positions become [n, 1, ·]; ``data`` is the name of the data.
        """
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
                f"features are not finite (NaN or infinite), first for sample {sample} of the {data}; "
                "look at that input or at the model's weights"
            )
        return cls(first, inputs, labels, values)


@torch.no_grad()
def chunks(
    source: Source,
    data: Data | Batches,
    *,
    labelled: bool = False,
    progress: Progress = silent,
    phase: str = "features",
) -> Iterator[FeatureChunk]:
    """Pass once over the data, in chunks whose values weigh at most `CHUNK_BYTES`."""
    batches = data if isinstance(data, Batches) else Batches(data)
    samples = input_chunks(batches, chunk_size(source, batches), labelled)
    for first, inputs, labels in batches.tracked(samples, phase, progress):
        yield FeatureChunk.validated(first, inputs, labels, source(inputs), batches.name)


def input_chunks(
    batches: Batches, size: int, labelled: bool, start: int = 0
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """(index of the first sample, inputs, labels or None) from sample ``start`` on."""
    if labelled:
        yield from batches.labelled_chunks(size, start)
    else:
        yield from ((first, inputs, None) for first, inputs in batches.chunks(size, start))


@torch.no_grad()
def chunk_size(source: Source, batches: Batches) -> int:
    """Samples per chunk that keep values, inputs and the network's activations small."""
    sample = batches.first()
    weight = FeatureChunk.validated(0, sample, None, source(sample), batches.name).values.numel()
    if isinstance(source, FeatureReader):
        sections = source.network.sections[: source.index]
        weight += sum(node.width * math.prod(node.grid or ()) for node in source.network.nodes)
        weight += sum(len(s.read) * math.prod(s.target.grid or ()) for s in sections)
    return max(1, CHUNK_BYTES // (8 * max(weight, sample.numel())))


def collect(source: Source, data: Data) -> Tensor:  # [n · S, features]
    """Read all values at once, for data that fit in memory.

    Args:
        source: A `FeatureReader`, or a function from inputs to values.
        data: Inputs.

    Returns:
        One row per sample and position, [rows, features].
    """
    return torch.cat([chunk.values.flatten(0, 1) for chunk in chunks(source, data)])


def outputs_from(network: Network, index: int, f: Tensor) -> Tensor:  # [n, T, width] -> [n, S, outputs]
    """Run the network from the activations of a node layer to its outputs."""
    for step in (*network.sections[index:], *network.tail):
        f = step(f)
    return f[..., network.output_layer.first_coordinate :]
