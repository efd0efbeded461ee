"""Passes over data, and the executor that runs them.

A `Pass` is a sum over data and knows nothing about where it runs. The `Executor` does the rest:

1. The data are cut into blocks that do not depend on the number of processes.
2. Every block is summed chunk by chunk. Its state is saved now and then, and a killed pass resumes there.
3. The sums of blocks are merged along one fixed binary tree, whoever computed them (`block_sums.py`).

One process, up to 16, shards and resumed work therefore give the same bits. With a limit on memory, from a
DataLoader, or where the sums of two blocks do not fit in memory, there is one block per process, and the last
digits depend on their number.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from interbasis.base.devices import double, near_sums, sums_device
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.compute.activation_cache import ActivationCache
from interbasis.compute.block_sums import BlockSum
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoints, State
from interbasis.compute.shards import Shards
from interbasis.compute.team import ALONE, Team
from interbasis.data.batches import Batches
from interbasis.network.network import Network


class Clock:
    """Seconds per phase; time in a phase within a phase counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.processor_seconds: dict[str, float] = {}
        """The same without the time in which other work had the processor; of all threads together."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        counters = (self.seconds, time.perf_counter), (self.processor_seconds, time.process_time)
        before = [(sum(seconds.values()), now()) for seconds, now in counters]
        try:
            yield
        finally:
            for (seconds, now), (inner_before, start) in zip(counters, before, strict=True):
                passed = now() - start - (sum(seconds.values()) - inner_before)
                seconds[phase] = seconds.get(phase, 0.0) + passed


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


def fits_in_layer_chunk(numbers: int) -> bool:
    """Whether so many numbers may be held at once by a pass that holds one layer at a time."""
    return 8 * numbers <= LAYERS_AT_ONCE * CHUNK_BYTES


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


S = TypeVar("S")
T = TypeVar("T")

BLOCKS = 16
"""Blocks that the data are summed in, so that as many processes give the same bits as one. Data of fewer
chunks have as many blocks as chunks: a smaller block takes as long as a chunk."""
MAX_BYTES_OF_SUMS = 2**28
"""Bytes up to which a process holds the sums of two blocks; else it sums one block only."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Neighbouring samples of the data, on the network's device."""

    first: int
    """Index of the first sample in the data."""
    runs: list[Tensor]
    """Inputs, samples of one length together."""
    data: str
    """Name of the data."""
    network: Network
    cache: ActivationCache | None = None
    place: int = 0
    """Index of the first sample in the cache."""

    @property
    def inputs(self) -> Tensor:
        """Inputs of samples that all have one length."""
        (inputs,) = self.runs
        return inputs

    @property
    def samples(self) -> int:
        return sum(map(len, self.runs))

    @torch.no_grad()
    def activations_at(self, layer: int) -> Tensor:  # [n, T, width]
        """Activations at a node layer, from the cache where they are stored."""
        if self.cache is None:
            return self.network.activations_at(layer, self.inputs)
        return self.cache.activations_at(layer, self.place, self.inputs)

    def stored_layers(self) -> set[int]:
        """Node layers whose activations are in the cache."""
        return set() if self.cache is None else self.cache.stored_at(self.place, self.inputs)


class Pass(ABC, Generic[S]):
    """A sum over data: a state, what a chunk adds to it, and how two states become one."""

    name: str
    """Name of the sums, unique among the passes of a task."""
    phase: str
    """Name that progress shows."""
    file: str
    """Name of the unfinished work."""
    multiple_of: int = 1
    """Chunks and blocks hold whole multiples of so many samples, but for the last."""
    holds_one_layer: bool = False
    """Whether the pass holds one layer's activations at a time, and takes samples of all lengths together."""

    @abstractmethod
    def start(self) -> S:
        """Return the state without data."""

    @abstractmethod
    def update(self, state: S, chunk: Chunk) -> None:
        """Add a chunk to the state."""

    @abstractmethod
    def merge(self, state: S, other: S) -> None:
        """Add the state of other data."""

    @abstractmethod
    def dump(self, state: S) -> State:
        """Return the state as tensors and plain values."""

    @abstractmethod
    def load(self, saved: State) -> S:
        """Return the state that was dumped."""


class SumsPass(Pass[dict[str, Tensor]]):
    """A pass whose state is float64 sums by name."""

    def start(self) -> dict[str, Tensor]:
        return {}

    def merge(self, state: dict[str, Tensor], other: dict[str, Tensor]) -> None:
        add_sums(state, other)

    def dump(self, state: dict[str, Tensor]) -> State:
        return state, {}

    def load(self, saved: State) -> dict[str, Tensor]:
        return dict(saved[0])


def add_sums(sums: dict[str, Tensor], more: dict[str, Tensor], weight: float = 1.0) -> None:
    """Add the sums of a chunk, in any precision, to float64 sums."""
    for name, total in more.items():
        if name in sums:
            sums[name].add_(near_sums(total), alpha=weight)
        else:
            sums[name] = weight * double(total)


@dataclass(frozen=True, eq=False)
class Executor:
    """Runs passes of a network over data."""

    network: Network
    team: Team = ALONE
    """The processes or shards that share the work."""
    checkpoints: Checkpoints = NO_CHECKPOINTS
    """Store of unfinished work."""
    progress: Progress = silent
    blocks: int | None = 1
    """Most blocks that data are summed in; None is one per process."""
    chunk_bytes: int | None = None
    """Bytes that the activations of a chunk may take, where memory is limited."""
    windows: tuple[tuple[int, int], ...] = ()
    """(first, last) sections, the last not included, that fit in memory together; empty is all of them."""
    cache_bytes: int = 0
    """Disk space for activations between passes."""
    clock: Clock = field(default_factory=Clock)
    caches: dict[int, ActivationCache] = field(default_factory=dict)
    """Caches by the identity of their data."""

    def run(self, pass_: Pass[S], data: Batches) -> S:
        """Return the state of a pass over all data."""
        return self.run_all([(pass_, data)])[0]

    def run_all(self, work: Sequence[tuple[Pass[Any], Batches]]) -> list[Any]:
        """Return the states of passes that do not depend on each other."""
        sums = self.team.sums(*(self._block_sum(pass_, data) for pass_, data in work))
        return [pass_.load(state) for (pass_, _), state in zip(work, sums, strict=True)]

    def decide(self, name: str, together: Callable[[], T], once: Callable[[T], State]) -> State:
        """Return ``once(together())``; all processes take part in the inner call, one makes the outer.

        Neither is called where an earlier round of shards has stored the result.
        """
        state = self.team.recall(name)
        if state is None:
            value = together()
            state = self.team.once(name, lambda: once(value))
        return state

    def within(self, name: str, network: Network) -> "Executor":
        """Return an executor for a part of the work, with a network of its own; one block per process."""
        return replace(
            self, network=network, checkpoints=self.checkpoints.within(name), blocks=None, windows=(),
            cache_bytes=0, caches={},
        )  # fmt: skip

    @contextmanager
    def caching(self, data: Batches, layers: tuple[int, ...] | None = None) -> Iterator[ActivationCache]:
        """Store activations of the data on disk for the passes that follow.

        Args:
            data: The data.
            layers: The node layers to store; default: those that save most work.
        """
        repeats = not data.shuffled and (layers is not None or not isinstance(self.team, Shards))
        budget = self.cache_bytes if repeats else 0
        with ActivationCache(self.network, len(data), budget, self.checkpoints.folder, layers) as cache:
            self.caches[id(data)] = cache
            try:
                yield cache
            finally:
                del self.caches[id(data)]

    def _block_sum(self, pass_: Pass[S], data: Batches) -> BlockSum:
        if data.shuffled and self.team.size > 1:
            raise InterbasisError(
                f"{data.name}: a shuffling DataLoader changes its order with every pass, so it cannot be "
                "split over processes; turn shuffling off"
            )
        blocks = data.blocks(self._count(data), pass_.multiple_of)

        def merge(state: State, other: State) -> State:
            result = pass_.load(state)
            pass_.merge(result, pass_.load(other))
            return pass_.dump(result)

        def compute(number: int) -> State:
            return pass_.dump(self._sum(pass_, data, blocks[number]))

        return BlockSum(pass_.name, len(blocks), compute, merge)

    def _count(self, data: Batches) -> int:
        """Number of blocks, the same for up to 16 processes."""
        if self.blocks is None or data.read_from_its_beginning:
            return self.team.size
        chunks = -(-len(data) // chunk_size(self.network, data, fine=True, limit=self.chunk_bytes))
        return min(max(self.blocks, self.team.size), chunks)

    def _sum(self, pass_: Pass[S], data: Batches, block: Batches) -> S:
        """Sum one block, from where it was interrupted."""
        checkpoint = self.checkpoints.checkpoint(pass_.file + block.block_suffix, len(block))
        state = pass_.start()
        if checkpoint.done:
            device = sums_device(self.network.device)
            saved = {name: tensor.to(device) for name, tensor in checkpoint.tensors.items()}
            state = pass_.load((saved, checkpoint.values))
        for chunk in self._chunks(pass_, data, block, checkpoint.done):
            pass_.update(state, chunk)
            end = chunk.first + chunk.samples
            checkpoint.save(end - block.offset, lambda: pass_.dump(state))
            self.progress(pass_.phase, end - data.offset, len(data))
        return state

    def _chunks(self, pass_: Pass[S], data: Batches, block: Batches, start: int) -> Iterator[Chunk]:
        network, cache = self.network, self.caches.get(id(data))
        if pass_.holds_one_layer:
            size = layer_chunk_size(network, data, self.chunk_bytes)
        else:
            size = chunk_size(network, data, fine=True, limit=self.chunk_bytes)
        size = max(1, size // pass_.multiple_of) * pass_.multiple_of
        for first, runs in block.ragged_chunks(size, start):
            runs = [inputs.to(network.device) for inputs in runs]
            if pass_.holds_one_layer:
                yield Chunk(first, runs, data.name, network)
                continue
            for inputs in runs:
                yield Chunk(first, [inputs], data.name, network, cache, first - data.offset)
                first += len(inputs)


def most_blocks(network: Network) -> int | None:
    """Most blocks that a network's data are summed in: `BLOCKS`, or None where sums of two do not fit."""
    size = sum(
        8 * (node.width**2 + section.shapes.read[0] ** 2)
        for node, section in zip(network.nodes, network.sections, strict=False)
    )
    return BLOCKS if size <= MAX_BYTES_OF_SUMS else None
