"""Node layers: cuts through the graph of streams.

Every core is one section. The node layer after it holds the core's output and whatever else is needed
later. Before a section ends, two more things are done. A branch that is added to a residual stream is added
within the section, so that the node layer is the residual stream and not the hidden layer beside it. And
where a linear map leads to a narrower layer, it is applied within the section, so that the node layer is the
bottleneck. What is needed on another grid (a strided shortcut) is computed on the way.

A node layer has one grid. A U-Net carries its fine streams past the coarse ones. They are held there folded,
the pixels of a block side by side as channels, [n, coarse positions, block · channels], which loses nothing,
and are read back by a stencil.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from math import prod

import torch
from torch import Tensor

from interbasis.models.traced.expressions import Expressions, NeedsCutError
from interbasis.models.traced.streams import (
    Attended,
    Convolved,
    CoreOp,
    Foreign,
    MeanSquare,
    Mixed,
    Spread,
    Stream,
    in_order,
)
from interbasis.network.stencil import Stencil
from interbasis.network.window import Grid

MAX_FOLDED_CHANNELS = 4096


class IrregularError(Exception):
    """No node layer fits between two cores."""


@dataclass(frozen=True, eq=False)
class StreamCut:
    """Streams of a node layer, all on one grid."""

    streams: tuple[Stream, ...]
    unfolded: dict[Stream, Spread] = field(default_factory=dict)
    """Operations that read streams which are folded here."""

    @property
    def grid(self) -> Grid:
        return self.streams[0].grid

    @property
    def width(self) -> int:
        return sum(stream.channels for stream in self.streams)

    @property
    def readable(self) -> set[Stream]:
        """Streams that can be read from it, folded or not."""
        return {*self.streams, *self.unfolded}

    def expressions(self, *more: Stream) -> Expressions:
        return Expressions({*self.streams, *more}, self.unfolded)


@dataclass(frozen=True, eq=False)
class PlannedSection:
    """Section from a cut to the next, by a core or by none; several cores are one general section."""

    source: StreamCut
    target: StreamCut
    core: Stream | None
    region: tuple[Stream, ...] = ()
    """Cores of a general section."""


@dataclass
class Planner:
    """Plans the sections from the first cut to one output."""

    output: Stream
    cut: StreamCut
    sections: list[PlannedSection] = field(default_factory=list)
    consumers: dict[Stream, list[Stream]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for stream in in_order([self.output], set()):
            for part in stream.inputs:
                self.consumers.setdefault(part, []).append(stream)

    def run(self) -> list[PlannedSection]:
        order = in_order([self.output], set(self.cut.streams))
        cores = [stream for stream in order if isinstance(stream.op, CoreOp)]
        while cores:
            try:
                try:
                    self._add_core(cores[0])
                    cores = cores[1:]
                except NeedsCutError as needed:
                    self._add_linear(needed.stream, cores)
            except IrregularError:
                cores = self._add_general(cores)
        while self.cut.streams != (self.output,):
            try:
                self.cut.expressions().expression(self.output)
                self._add(StreamCut((self.output,)), None)
            except NeedsCutError as needed:
                self._add_linear(needed.stream, [])
        return self.sections

    def _add(self, target: StreamCut, core: Stream | None, region: tuple[Stream, ...] = ()) -> None:
        self.sections.append(PlannedSection(self.cut, target, core, region))
        self.cut = target

    def _add_core(self, core: Stream) -> None:
        """Plan a section with this core."""
        here = self.cut.expressions()
        reads_positions = isinstance(core.op, (Foreign, Attended))
        for part in core.inputs:
            if here.expression(part).spreads and reads_positions:
                raise NeedsCutError(part)
        if any(part.grid != core.inputs[0].grid for part in core.inputs):
            raise IrregularError
        if reads_positions and core.grid != self.cut.grid:
            raise IrregularError
        target = self._cut_after(core)
        wider = self.cut.expressions(core)
        for stream in target.streams:
            expression = wider.expression(stream)
            if any(term.stencil is not None for term in expression.terms if term.stream is core):
                raise IrregularError
            if reads_positions and expression.spreads:
                raise IrregularError
        self._add(target, core)

    def _add_linear(self, stream: Stream, cores: Sequence[Stream]) -> None:
        """Plan a linear section that makes a stream a part of the node layer."""
        if stream in self.cut.streams or isinstance(stream.op, CoreOp):
            raise IrregularError
        try:
            self.cut.expressions().expression(stream)
        except NeedsCutError as needed:
            if needed.stream is stream:  # an input that no node layer holds any more
                raise IrregularError from needed
            self._add_linear(needed.stream, cores)
            return
        try:
            target = self._cut_after(stream)
        except IrregularError:
            if cores:
                raise
            target = StreamCut((stream,))
        if target.streams == self.cut.streams:
            raise IrregularError
        here = self.cut.expressions()
        try:
            for part in target.streams:
                here.expression(part)
        except NeedsCutError as needed:
            raise IrregularError from needed
        self._add(target, None)

    def _add_general(self, cores: list[Stream]) -> list[Stream]:
        """Plan one section over as many cores as it takes until a node layer fits; return the remaining."""
        known = set(self.cut.readable)
        for number, core in enumerate(cores, 1):
            known.add(core)
            streams = self._needed(known)
            fits = len({s.grid for s in streams}) == 1 and not set(streams) <= self.cut.readable
            if fits and prod(streams[0].grid) <= prod(self.cut.grid):
                self._add(StreamCut(_variances_first(streams)), None, tuple(cores[:number]))
                return cores[number:]
        self._add(StreamCut((self.output,)), None, tuple(cores))
        return []

    def _cut_after(self, stream: Stream) -> StreamCut:
        """The node layer behind a new stream."""
        known, grid = self.cut.readable | {stream}, stream.grid
        streams = self._narrowed(stream, known, self._needed(known))
        if any(s.grid != grid for s in streams):
            streams = self._needed(known | self._on_grid(grid, known))
        unfolded: dict[Stream, Spread] = {}
        final: list[Stream] = []
        for part in streams:
            if part.grid == grid:
                final.append(part)
                continue
            if part in self.cut.unfolded and self.cut.grid == grid:
                unfolded[part] = self.cut.unfolded[part]
            elif _folds(part, grid):
                unfolded[part] = _unfolding(part, grid)
            else:
                raise IrregularError
            final.append(unfolded[part].inputs[0])
        return StreamCut(_variances_first(final), unfolded)

    def _needed(self, known: set[Stream]) -> list[Stream]:
        """Known streams that the output still requires."""
        if self.output in known:
            return [self.output]
        parts = (part for stream in in_order([self.output], known) for part in stream.inputs)
        return list(dict.fromkeys(part for part in parts if part in known))

    def _narrowed(self, stream: Stream, known: set[Stream], streams: list[Stream]) -> list[Stream]:
        """Streams with one in the place of several, or of a wider one, where what follows allows it."""
        width = sum(s.channels for s in streams)
        for mixed in self._mixtures(stream):
            parts = set(_sources(mixed, known))
            bottleneck = mixed.channels < stream.channels and self._is_bottleneck(mixed)
            if mixed.grid != stream.grid or (len(parts) < 2 and not bottleneck) or not parts <= known:
                continue
            needed = self._needed(known | {mixed})
            if sum(s.channels for s in needed) < width:
                return self._narrowed(mixed, known | {mixed}, needed)
        return streams

    def _mixtures(self, stream: Stream) -> list[Stream]:
        """Streams that follow from one by `Mixed` alone."""
        mixtures: dict[Stream, None] = {}
        waiting = [stream]
        while waiting:
            for consumer in self.consumers.get(waiting.pop(0), ()):
                if isinstance(consumer.op, Mixed) and consumer not in mixtures:
                    mixtures[consumer] = None
                    waiting.append(consumer)
        return list(mixtures)

    def _is_bottleneck(self, stream: Stream) -> bool:
        """Whether a linear map with weights of its own makes a mixture, and another one reads it."""
        readers = [reader.op for reader in self.consumers.get(stream, [])]
        if not any(isinstance(op, Spread) or (isinstance(op, Mixed) and op.is_linear_map) for op in readers):
            return False
        while isinstance(stream.op, Mixed):
            if stream.op.is_linear_map:
                return True
            stream = stream.inputs[0]
        return False

    def _on_grid(self, grid: Grid, known: set[Stream]) -> set[Stream]:
        """Streams on this grid that follow from others on another one, where the old cut holds these."""
        here, ready = self.cut.expressions(), set()
        for stream in in_order([self.output], known):
            if isinstance(stream.op, Spread) and stream.grid == grid:
                with suppress(NeedsCutError):
                    here.expression(stream)
                    ready.add(stream)
        return ready


def _sources(stream: Stream, known: set[Stream]) -> list[Stream]:
    """Streams that one is computed from, as far as `Mixed` goes."""
    if stream in known or not isinstance(stream.op, Mixed):
        return [stream]
    return [source for part in stream.inputs for source in _sources(part, known)]


def _variances_first(streams: Sequence[Stream]) -> tuple[Stream, ...]:
    """Streams in order, but variances first, as they are isolated."""
    return tuple(sorted(streams, key=lambda s: not isinstance(s.op, MeanSquare)))


def _folds(stream: Stream, grid: Grid) -> bool:
    """Whether a stream can be held on a coarser grid."""
    if grid and (len(grid) != len(stream.grid) or any(f % c for f, c in zip(stream.grid, grid, strict=True))):
        return False
    return stream.positions // prod(grid) * stream.channels <= MAX_FOLDED_CHANNELS


def _unfolding(stream: Stream, grid: Grid) -> Convolved:
    """Operation that reads a stream from its folded copy on a coarser grid, which is its input."""
    blocks = _blocks(stream.grid, grid)  # [coarse positions, block]
    count, channels = blocks.shape[1], stream.channels
    ones = torch.ones(*blocks.shape, 1, dtype=torch.float64)
    together = torch.eye(count * channels, dtype=torch.float64).unflatten(1, (count, channels))
    folding = Convolved((stream,), Stencil(stream.grid, grid, blocks[..., None], ones), together)
    folded = Stream(grid, count * channels, folding, stream.location, stream.callers)
    coarse, number = torch.empty(2, stream.positions, dtype=torch.long)
    coarse[blocks] = torch.arange(len(blocks))[:, None].expand_as(blocks)
    number[blocks] = torch.arange(count).expand_as(blocks)
    index = coarse[:, None, None].expand(-1, count, 1).clone()
    weight = (number[:, None] == torch.arange(count)).double()[..., None]
    apart = together.permute(2, 1, 0).contiguous()  # [channels, block, block · channels]
    return Convolved((folded,), Stencil(grid, stream.grid, index, weight), apart)


def _blocks(fine: Grid, coarse: Grid) -> Tensor:  # [coarse positions, block]
    """Fine positions of every coarse one."""
    numbers = torch.arange(prod(fine))
    if not coarse:
        return numbers[None]
    sizes = [f // c for f, c in zip(fine, coarse, strict=True)]
    offsets = product(*map(range, sizes))
    corners = (tuple(slice(o, None, s) for o, s in zip(offset, sizes, strict=True)) for offset in offsets)
    return torch.stack([numbers.view(fine)[corner].flatten() for corner in corners], dim=1)
