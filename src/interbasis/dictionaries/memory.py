"""Memory of the edges between dictionaries, and the passes over the data that fit them into a limit.

Held are, for every pair of dictionaries, sums over pairs of features (24 bytes each, 32 where positions are
sampled) and products computed in advance; beside them what a chunk of the data takes. With a limit, each pass
sums as many pairs of dictionaries as fit, or a part of the target features of one. Attributions are computed
as without a limit, and those of other features are dropped, so that bits do not depend on the limit; a pair
in P parts therefore takes P times as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from interbasis.base.errors import InterbasisError
from interbasis.base.memory import format_bytes, sufficient_memory
from interbasis.compute.executor import BLOCKS, MAX_BYTES_OF_SUMS, Executor, chunk_size
from interbasis.data.batches import Batches
from interbasis.dictionaries.chain import is_positionwise
from interbasis.dictionaries.edge_sums import (
    MAX_ATTRIBUTIONS,
    MAX_VECTOR_ELEMENTS,
    EdgePart,
    PairOfDictionaries,
    activations_between,
)
from interbasis.dictionaries.edges import MAX_GATHERED_ELEMENTS
from interbasis.dictionaries.layers import REMAINDERS
from interbasis.dictionaries.strongest_edges import MAX_HELD, MAX_SEARCHED, MAX_STORED_EDGES
from interbasis.lib.memory import RESERVE

MAX_PARTS = 64
"""Parts of a pair at most: each is a pass over the data."""
BYTES_OF_CANDIDATES = 100
"""Bytes per edge that may be stored, while the strongest are chosen: sums, places, order, copies."""
BYTES_STORED = 48
"""Bytes per edge that is stored, or may be, between passes."""
COPIES_OF_VECTORS = 5
"""Arrays of vectors that are held at once: split, counted, pushed forward, read."""
MORE_ACTIVE = 1.25
"""Most features that are active at a token of the data, in multiples of those in its first sample."""
BYTES_OF_ATTRIBUTIONS = 56
"""Bytes per attribution while a block of them is summed over positions and added."""


@dataclass(frozen=True)
class PairMemory:
    """Bytes that a pair of dictionaries takes."""

    name: str
    rows: int
    """Target features."""
    row: int
    """Sums of a target feature, as often as they are held at once."""
    copies: int
    """How often that is."""
    products: int
    working: int
    """What a chunk takes, and the choice of the edges that are stored."""
    stored: int

    @classmethod
    def from_pair(
        cls, pair: PairOfDictionaries, tokens: tuple[int, int], active: tuple[int, int], copies: int
    ) -> "PairMemory":
        """Bytes from shapes.

        Args:
            pair: The pair.
            tokens: Samples of a chunk, and positions of each.
            active: Features that are active at a token, of source and target.
            copies: Sums that are held at once, of neighbouring blocks.
        """
        rows, width = pair.size
        itemsize = pair.source.dictionary.encoder.element_size()
        k_in, k_out = active
        samples, positions = tokens
        ends = pair.source.section.source.width, pair.source.section.target.width
        mixing = [k for k, section in enumerate(pair.sections) if not is_positionwise(section)]
        pushed = pair.sections[: mixing[0] + 1] if mixing else ()
        widest = max([*ends, *(max(*s.shapes.read, *s.shapes.write) for s in pushed)])
        vectors = positions * (k_in + len(REMAINDERS)) * widest
        attributions = k_out * positions * (k_in + len(REMAINDERS))
        if mixing:
            attributions = max(attributions, MAX_ATTRIBUTIONS)
        else:
            vectors = min(samples * vectors, MAX_VECTOR_ELEMENTS)
            attributions = min(samples * attributions, 2 * MAX_GATHERED_ELEMENTS)
        encoding = 16 * samples * positions * max(rows, width)
        chunk = itemsize * COPIES_OF_VECTORS * vectors + BYTES_OF_ATTRIBUTIONS * attributions + encoding
        edges = min(rows * width, int(MAX_HELD * MAX_STORED_EDGES) + MAX_SEARCHED)
        return cls(
            name=f"from {pair.source.name} to {pair.target.name}",
            rows=rows,
            row=8 * len(pair.settings.sums) * width * copies,
            copies=copies,
            products=itemsize * pair.product_elements,
            working=max(chunk, BYTES_OF_CANDIDATES * edges),
            stored=BYTES_STORED * min(rows * width, MAX_STORED_EDGES),
        )

    @property
    def sums(self) -> int:
        return self.row * self.rows


def most_blocks(pairs: Sequence[PairOfDictionaries]) -> int:
    """Most blocks that data are summed in; 0, one per process, where sums of two blocks do not fit.

    A limit on memory does not change it, nor what is sampled.
    """
    size = sum(32 * rows * width for rows, width in (pair.size for pair in pairs))
    return BLOCKS if size <= MAX_BYTES_OF_SUMS else 0


def total_bytes(pairs: Sequence[PairMemory]) -> int:
    """Bytes of a build in one pass, beside what the process holds already."""
    return sum(p.sums + p.products + p.stored for p in pairs) + max(p.working for p in pairs)


@torch.no_grad()
def pair_memory(pairs: Sequence[PairOfDictionaries], data: Batches, executor: Executor) -> list[PairMemory]:
    """Memory of every pair; how many features are active at a token, the first sample says."""
    network, layers = executor.network, [pairs[0].source, *(pair.target for pair in pairs)]
    f = network.activations_at(layers[0].index, data.first().to(network.device))
    activations = activations_between(network, layers, f)
    active = [
        min(layer.features, int(MORE_ACTIVE * layer.encode(activations[layer.index]).indices.shape[-1]))
        for layer in layers
    ]
    tokens = chunk_size(network, data, fine=True, limit=executor.chunk_bytes), f.shape[1]
    copies = BLOCKS.bit_length() + 1 if executor.blocks else 1
    copies += executor.team.size if executor.team.size > 1 else 0
    return [
        PairMemory.from_pair(pair, tokens, ends, copies)
        for pair, ends in zip(pairs, pairwise(active), strict=True)
    ]


def edge_passes(pairs: Sequence[PairMemory], limit: int, held: int) -> list[list[EdgePart]]:
    """Divide pairs of dictionaries into passes over the data whose sums fit in memory.

    Args:
        pairs: Memory of every pair.
        limit: Bytes that the process may hold.
        held: Bytes that it holds already.

    Raises:
        InterbasisError: The smallest part of a pair does not fit.
    """
    beside = held + max(pair.working for pair in pairs) + sum(pair.stored for pair in pairs)
    room = int((1 - RESERVE) * limit) - beside
    passes: list[list[EdgePart]] = [[]]
    left = room
    for k, pair in enumerate(pairs):
        if passes[-1] and pair.products + pair.sums > left:
            passes.append([])
            left = room
        fitting = (left - pair.products) // pair.row
        least = -(-pair.rows // MAX_PARTS)
        if fitting < least:
            needed = beside + pair.products + least * pair.row
            raise InterbasisError(
                f"--memory {format_bytes(limit)} is too little for the edges {pair.name}, which require "
                f"about {format_bytes(needed / (1 - RESERVE))} even in {MAX_PARTS} parts: "
                f"{format_bytes(held)} for the process, the model and the dictionaries, and "
                f"{format_bytes(needed - held)} for the edges; give --memory "
                f"{sufficient_memory(needed / (1 - RESERVE))} or more"
            )
        size = -(-pair.rows // -(-pair.rows // min(fitting, pair.rows)))  # equal parts
        for first in range(0, pair.rows, size):
            if first:
                passes.append([])
                left = room
            passes[-1].append(EdgePart(k, slice(first, min(first + size, pair.rows))))
        left -= pair.products + min(size, pair.rows) * pair.row
    return passes
