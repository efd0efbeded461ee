"""Chunk sizes: how many samples a pass holds in memory at once."""

import math

from interbasis.base.errors import InterbasisError
from interbasis.data.batches import Batches
from interbasis.network.network import Network

CHUNK_BYTES = 2**26
"""Bytes that the activations of one chunk may take; large, for Grams of wide layers."""
FINE_CHUNK_BYTES = 2**23
"""The same for passes that do more with every sample, so that progress is shown often."""
LAYERS_AT_ONCE = 4
"""A single layer of a chunk may take so many times CHUNK_BYTES."""
TOKENS_PER_CHUNK = 2048
"""Tokens that are summed before they are added to the sums of a large network, which takes a while."""


def chunk_size(network: Network, batches: Batches, fine: bool = False, limit: int | None = None) -> int:
    """Number of samples whose activations at all layers fit in a chunk, or in ``limit`` bytes."""
    size = FINE_CHUNK_BYTES if fine else CHUNK_BYTES
    size = min(size, limit or size)
    return max(1, size // (8 * _coordinates(network, _positions(network, batches))))


def layer_chunk_size(network: Network, batches: Batches, limit: int | None = None) -> int:
    """Number of samples for a pass that holds the activations of one layer at a time."""
    if limit is not None:
        return chunk_size(network, batches, limit=limit)
    positions = _positions(network, batches)
    widest = max(section.source.width + section.shapes.read[0] for section in network.sections)
    enough = min(-(-TOKENS_PER_CHUNK // positions), LAYERS_AT_ONCE * CHUNK_BYTES // (8 * widest * positions))
    return max(chunk_size(network, batches), enough)


def _positions(network: Network, batches: Batches) -> int:
    """Positions of a sample at the first node layer."""
    positions = network.prefix(batches.first().to(network.device)).shape[1]
    if positions == 0:
        raise InterbasisError(f"{batches.name}: samples have no positions; expected at least one")
    return positions


def _coordinates(network: Network, positions: int) -> int:
    """Numbers that a sample has at all node layers and read-outs, from its positions at the first."""
    total = 0
    for section in network.sections:
        total += positions * section.source.width
        grid = section.target.grid
        positions = positions if grid is None else math.prod(grid)
        total += positions * section.shapes.read[0]
    return total + positions * network.nodes[-1].width
