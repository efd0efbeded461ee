"""The stream of a node layer that a dictionary is of, and its activations over a data set.

Activations are computed chunk by chunk and written to a file, from which training draws tokens at random: no
more than a chunk of them is ever held. What is behind the last checkpoint of an interrupted pass is cut off
and written again.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.compute.checkpoints import Checkpoint, State
from interbasis.compute.executor import chunk_size
from interbasis.data.batches import Batches
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.network.hooks import node_layer
from interbasis.network.network import Network


@dataclass(frozen=True)
class StreamPlace:
    """The stream that the section after a node layer reads; all of the layer before a linear section."""

    layer: str
    index: int
    """Number of the node layer."""
    columns: slice
    """Coordinates of the stream."""

    @classmethod
    def from_network(cls, network: Network, layer: str) -> "StreamPlace":
        """Find the stream of a node layer, by its name or a hook name of TransformerLens.

        Raises:
            InterbasisError: There is no such layer, or no section reads it.
        """
        layer = node_layer(layer, network.layers)
        index = network.layers.index(layer)
        if index == len(network.sections):
            raise InterbasisError(
                f"no section reads the last node layer {layer!r}, so nothing can be replaced there; choose "
                f"one of {', '.join(network.layers[:-1])}"
            )
        first, end = network.sections[index].columns_read
        if first == end:  # a linear section, which has no read-outs
            node = network.nodes[index]
            first, end = node.first_coordinate, node.width
        return cls(layer, index, slice(first, end))

    @property
    def width(self) -> int:
        return self.columns.stop - self.columns.start


@dataclass(frozen=True, eq=False)
class StreamActivations:
    """Activations of streams, side by side, at the tokens that count in all of them."""

    rows: Tensor  # x [tokens, d], float32, a view of a file
    covariance: Tensor  # Σ [d, d], float64


@torch.no_grad()
def store_activations(
    network: Network,
    places: Sequence[StreamPlace],
    batches: Batches,
    file: Path,
    *,
    counted: CountedTokens = ALL_TOKENS,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] = lambda samples: None,
) -> StreamActivations:
    """Write the activations of one or more streams to a file, and sum up their covariance.

    Args:
        network: The network.
        places: The streams, which have the same positions.
        batches: Inputs.
        file: File to write to, or to go on with.
        counted: Tokens that are written.
        checkpoint: Where the state of unfinished work is stored.
        progress: Called with the number of samples done.

    Returns:
        The activations.

    Raises:
        InterbasisError: No token counts.
    """
    checkpoint = checkpoint or Checkpoint()
    width = sum(place.width for place in places)
    sums = checkpoint.tensors or {
        "tokens": torch.zeros((), dtype=torch.float64),
        "sum": torch.zeros(width, dtype=torch.float64),
        "squares": torch.zeros(width, width, dtype=torch.float64),
    }
    with open(file, "r+b" if checkpoint.done else "wb") as out:
        out.seek(4 * width * int(sums["tokens"]))
        out.truncate()

        def state() -> State:
            out.flush()
            os.fsync(out.fileno())
            return sums, {}

        for first, inputs in batches.chunks(chunk_size(network, batches), checkpoint.done):
            inputs = inputs.to(network.device)
            fs = [network.activations_at(place.index, inputs) for place in places]
            counts = [
                counted.at(place.index, network.nodes[place.index], f)
                for place, f in zip(places, fs, strict=True)
            ]
            streams = [f[..., place.columns] for place, f in zip(places, fs, strict=True)]
            x = torch.cat(streams, -1)[torch.stack(counts).all(0)].float().cpu()
            out.write(x.contiguous().numpy().data)
            wide = x.double()
            for name, more in (("sum", wide.sum(0)), ("squares", wide.T @ wide)):
                sums[name] += more
            sums["tokens"] += len(x)
            checkpoint.save(first + len(inputs) - batches.offset, state)
            progress(first + len(inputs) - batches.offset)
    tokens = int(sums["tokens"])
    if not tokens:
        raise InterbasisError(f"no token of {batches.name} counts at {places[0].layer!r}; use norm_limit=0")
    mean = sums["sum"] / tokens
    rows = np.memmap(file, np.float32, "c", shape=(tokens, width))
    return StreamActivations(torch.from_numpy(rows), sums["squares"] / tokens - torch.outer(mean, mean))
