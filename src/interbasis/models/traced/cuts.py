"""Node layers: cuts through the graph of streams.

Every core is one section. The node layer after it holds the core's output and whatever else is needed
later. Before a section ends, two more things are done. A branch that is added to a residual stream is added
within the section, so that the node layer is the residual stream and not the hidden layer beside it. And
where a linear map leads to a narrower layer, it is applied within the section, so that the node layer is the
bottleneck. What is needed on another grid (a strided shortcut) is computed on the way.

A node layer has one grid. A U-Net carries its fine streams past the coarse ones. They are held there folded,
the pixels of a block side by side as channels, [n, coarse positions, block · channels], which loses nothing,
and are read back by a stencil.

A stream that is made by `Mixed` operations and at most one `Spread` from the streams of a cut is a linear map
of these,

    x_s = b + Σ_i Σ_k T_ik (W_k f_i)_s,

with taps T of a stencil for every stream f_i of the cut (`Expression`). A second `Spread` on the way, or a
bias that padding would cut off, requires a node layer in between.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import torch
from torch import Tensor

from interbasis.models.traced.streams import CORES, Convolved, Foreign, Mixed, Spread, Stream, in_order
from interbasis.network.cores import Attention, GroupNorm, PositionScale, Variance
from interbasis.network.stencil import Stencil
from interbasis.network.window import Grid

MAX_FOLDED_CHANNELS = 4096


class NeedsCutError(Exception):
    """A stream, the argument, has to be in a node layer first."""


@dataclass(frozen=True, eq=False)
class LinearTerm:
    """Σ_k T_k (W_k f)_s of one stream; without a stencil a matrix [rows, 1, c]."""

    stream: Stream
    taps: Tensor  # [rows, K, c]
    stencil: Stencil | None = None


@dataclass(frozen=True, eq=False)
class Expression:
    """b + terms."""

    bias: Tensor  # [rows]
    terms: tuple[LinearTerm, ...]

    @property
    def spreads(self) -> bool:
        return any(term.stencil is not None for term in self.terms)

    def after(self, weight: Tensor) -> "Expression":
        """W times the expression."""
        terms = tuple(
            LinearTerm(t.stream, (weight @ t.taps.flatten(1)).unflatten(1, t.taps.shape[1:]), t.stencil)
            for t in self.terms
        )
        return Expression(weight @ self.bias, terms)


@dataclass
class Expressions:
    """Expressions of streams in those of one cut."""

    cut: Collection[Stream]
    unfolded: dict[Stream, Spread] = field(default_factory=dict)
    """Operations that read streams which the cut holds on a coarser grid."""
    cache: dict[Stream, Expression] = field(default_factory=dict)

    def missing(self, streams: Iterable[Stream]) -> Stream | None:
        """The stream that has to be in a node layer first; None where all of these can be expressed."""
        try:
            for stream in streams:
                self.expression(stream)
        except NeedsCutError as needed:
            return needed.args[0]
        return None

    def expression(self, stream: Stream) -> Expression:
        if stream in self.cache:
            return self.cache[stream]
        if not isinstance(stream.op, Mixed) or stream in self.cut or stream in self.unfolded:
            made = self._through(torch.eye(stream.channels, dtype=torch.float64), stream)
        else:
            total, terms = stream.op.bias.double(), list[LinearTerm]()
            for weight, part in zip(stream.op.weights, stream.inputs, strict=True):
                moved = self._through(weight.double(), part)
                total = total + moved.bias
                terms += moved.terms
            made = Expression(total, _merged(terms))
        self.cache[stream] = made
        return made

    def _through(self, weight: Tensor, stream: Stream) -> Expression:
        """W times a stream, as an expression."""
        if stream in self.cut:
            return Expression(weight.new_zeros(len(weight)), (LinearTerm(stream, weight[:, None]),))
        op = self.unfolded.get(stream, stream.op)
        if isinstance(op, Spread):
            return self._spread(weight, op)
        if isinstance(op, Mixed):
            return self.expression(stream).after(weight)
        raise NeedsCutError(stream)

    def _spread(self, weight: Tensor, spread: Spread) -> Expression:
        inner, stencil = self.expression(spread.inputs[0]), spread.stencil
        whole = spread.taps_after(weight)  # [rows, K, c]
        if inner.spreads:
            if spread.inputs[0] not in self.unfolded:
                raise NeedsCutError(spread.inputs[0])
            return _composed(whole, stencil, inner)
        is_direct = spread.inputs[0] in self.cut

        def after(taps: Tensor) -> Tensor:  # [c, 1, c_in] -> [rows, K, c_in]
            return whole if is_direct else (whole.flatten(0, 1) @ taps[:, 0]).unflatten(0, whole.shape[:2])

        terms = tuple(LinearTerm(t.stream, after(t.taps), stencil) for t in inner.terms)
        if not inner.bias.any():
            return Expression(weight.new_zeros(len(weight)), terms)
        sums = stencil.weight.sum(2)  # [S, K]
        if (sums - sums[:1]).abs().max() > 1e-12:
            raise NeedsCutError(spread.inputs[0])
        return Expression(torch.einsum("rkc,k,c->r", whole, sums[0], inner.bias), terms)


def _composed(taps: Tensor, stencil: Stencil, inner: Expression) -> Expression:
    """Compose a stencil of single pixels with another, pair by pair of their taps."""
    terms = []
    for term in inner.terms:
        assert term.stencil is not None
        indices, weights, matrices = [], [], []
        for k in range(stencil.taps):
            index, weight = stencil.index[:, k, 0], stencil.weight[:, k, 0]
            for other in range(term.stencil.taps):
                both = weight * term.stencil.weight[index, other, 0]
                if both.any():
                    indices.append(term.stencil.index[index, other, 0])
                    weights.append(both)
                    matrices.append(taps[:, k] @ term.taps[:, other])
        index, weight = (torch.stack(parts, dim=1)[..., None] for parts in (indices, weights))
        whole = Stencil(term.stencil.source, stencil.target, index, weight)
        terms.append(LinearTerm(term.stream, torch.stack(matrices, dim=1), whole))
    return Expression(taps.new_zeros(len(taps)), tuple(terms))


def _merged(terms: list[LinearTerm]) -> tuple[LinearTerm, ...]:
    """Add terms that read the same stream in the same way."""
    merged: dict[tuple[Stream, int], LinearTerm] = {}
    for term in terms:
        key = term.stream, id(term.stencil)
        if key in merged:
            term = LinearTerm(term.stream, merged[key].taps + term.taps, term.stencil)
        merged[key] = term
    return tuple(merged.values())


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
        cores = [stream for stream in order if isinstance(stream.op, CORES)]
        while cores:
            try:
                try:
                    self._add_core(cores[0])
                    cores = cores[1:]
                except NeedsCutError as error:
                    self._add_linear(error.args[0], cores)
            except IrregularError:
                cores = self._add_general(cores)
        while self.cut.streams != (self.output,):
            needed = self.cut.expressions().missing([self.output])
            if needed is None:
                self._add(StreamCut((self.output,)), None)
            else:
                self._add_linear(needed, [])
        return self.sections

    def _add(self, target: StreamCut, core: Stream | None, region: tuple[Stream, ...] = ()) -> None:
        self.sections.append(PlannedSection(self.cut, target, core, region))
        self.cut = target

    def _add_core(self, core: Stream) -> None:
        """Plan a section with this core."""
        here = self.cut.expressions()
        reads_positions = isinstance(core.op, Foreign) or core.is_core(Attention, GroupNorm, PositionScale)
        for part in core.inputs:
            if here.expression(part).spreads and reads_positions:
                raise NeedsCutError(part)
        grids = {part.grid for part in core.inputs}
        if len(grids) > 1 or (reads_positions and core.grid != self.cut.grid):
            raise IrregularError
        target = self._cut_after(core)
        wider = self.cut.expressions(core)
        for stream in target.streams:
            terms = wider.expression(stream).terms
            if any(t.stencil is not None for t in terms if reads_positions or t.stream is core):
                raise IrregularError
        self._add(target, core)

    def _add_linear(self, stream: Stream, cores: Sequence[Stream]) -> None:
        """Plan a linear section that makes a stream a part of the node layer."""
        needed = self.cut.expressions().missing([stream])
        if needed is stream or stream in self.cut.streams:  # an input that no node layer holds any more
            raise IrregularError
        if needed is not None:
            self._add_linear(needed, cores)
            return
        try:
            target = self._cut_after(stream)
        except IrregularError:
            if cores:
                raise
            target = StreamCut((stream,))
        if target.streams == self.cut.streams or self.cut.expressions().missing(target.streams):
            raise IrregularError
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
        here = self.cut.expressions()
        spread = (s for s in in_order([self.output], known) if isinstance(s.op, Spread) and s.grid == grid)
        return {stream for stream in spread if here.missing([stream]) is None}


def _sources(stream: Stream, known: set[Stream]) -> list[Stream]:
    """Streams that one is computed from, as far as `Mixed` goes."""
    if stream in known or not isinstance(stream.op, Mixed):
        return [stream]
    return [source for part in stream.inputs for source in _sources(part, known)]


def _variances_first(streams: Sequence[Stream]) -> tuple[Stream, ...]:
    """Streams in order, but variances first, as they are isolated."""
    return tuple(sorted(streams, key=lambda stream: not stream.is_core(Variance)))


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
    folded = Stream(grid, count * channels, folding, stream.location)
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
