"""Where node layers lie.

Every core is one section. The node layer after it holds the core's output and whatever else is needed
later. Before a section ends, two more things are done. A branch that is added to a residual stream is added
within the section, so that the node layer is the residual stream and not the hidden layer beside it. And
where a linear map leads to a narrower layer, it is applied within the section, so that the node layer is the
bottleneck. What is needed on another grid (a strided shortcut) is computed on the way; what stays on a finer
grid is folded (`folding.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from interbasis.models.traced.expressions import Expressions, NeedsCutError
from interbasis.models.traced.folding import fold, folds
from interbasis.models.traced.streams import (
    Attended,
    CoreOp,
    Foreign,
    MeanSquare,
    Mixed,
    Spread,
    Stream,
    in_order,
)
from interbasis.network.window import Grid


class IrregularError(Exception):
    """No node layer fits between two cores."""


@dataclass(frozen=True, eq=False)
class Cut:
    """The streams of a node layer, all on one grid."""

    streams: tuple[Stream, ...]
    unfolded: dict[Stream, Spread] = field(default_factory=dict)
    """How streams that are folded here are read."""

    @property
    def grid(self) -> Grid:
        return self.streams[0].grid

    @property
    def width(self) -> int:
        return sum(stream.channels for stream in self.streams)

    @property
    def held(self) -> set[Stream]:
        """All that can be read from it, folded or not."""
        return {*self.streams, *self.unfolded}

    def expressions(self, *more: Stream) -> Expressions:
        return Expressions({*self.streams, *more}, self.unfolded)


@dataclass(frozen=True, eq=False)
class Step:
    """From a cut to the next, by a core or by none; several cores are one general step."""

    source: Cut
    target: Cut
    core: Stream | None
    region: tuple[Stream, ...] = ()
    """The cores of a general step."""


@dataclass
class Planner:
    """Cuts through the graph of one output."""

    output: Stream
    cut: Cut
    steps: list[Step] = field(default_factory=list)
    consumers: dict[Stream, list[Stream]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for stream in in_order([self.output], set()):
            for part in stream.inputs:
                self.consumers.setdefault(part, []).append(stream)

    def run(self) -> list[Step]:
        order = in_order([self.output], set(self.cut.streams))
        cores = [stream for stream in order if isinstance(stream.made, CoreOp)]
        while cores:
            try:
                try:
                    self._step(cores[0])
                    cores = cores[1:]
                except NeedsCutError as needed:
                    self._materialise(needed.stream, cores)
            except IrregularError:
                cores = self._general(cores)
        while self.cut.streams != (self.output,):
            try:
                self.cut.expressions().of(self.output)
                self._go(Cut((self.output,)), None)
            except NeedsCutError as needed:
                self._materialise(needed.stream, [])
        return self.steps

    def _go(self, target: Cut, core: Stream | None, region: tuple[Stream, ...] = ()) -> None:
        self.steps.append(Step(self.cut, target, core, region))
        self.cut = target

    def _step(self, core: Stream) -> None:
        here = self.cut.expressions()
        pointwise = isinstance(core.made, Foreign) or _mixes(core)
        for part in core.inputs:
            if here.of(part).spreads and pointwise:
                raise NeedsCutError(part)
        if any(part.grid != core.inputs[0].grid for part in core.inputs):
            raise IrregularError
        if pointwise and core.grid != self.cut.grid:
            raise IrregularError
        target = self._after(core)
        wider = self.cut.expressions(core)
        for stream in target.streams:
            if any(term.stencil is not None for term in wider.of(stream).terms if term.stream is core):
                raise IrregularError
            if pointwise and wider.of(stream).spreads:
                raise IrregularError
        self._go(target, core)

    def _materialise(self, stream: Stream, cores: Sequence[Stream]) -> None:
        """A linear step that makes a stream a part of the node layer."""
        if stream in self.cut.streams or isinstance(stream.made, CoreOp):
            raise IrregularError
        try:
            self.cut.expressions().of(stream)
        except NeedsCutError as needed:
            if needed.stream is stream:  # an input that no node layer holds any more
                raise IrregularError from needed
            self._materialise(needed.stream, cores)
            return
        try:
            target = self._after(stream)
        except IrregularError:
            if cores:
                raise
            target = Cut((stream,))
        if target.streams == self.cut.streams:
            raise IrregularError
        here = self.cut.expressions()
        try:
            for part in target.streams:
                here.of(part)
        except NeedsCutError as needed:
            raise IrregularError from needed
        self._go(target, None)

    def _after(self, made: Stream) -> Cut:
        """The node layer behind a new stream."""
        held = self.cut.held | {made}
        streams = self._leaves(held)
        if made not in streams:
            streams = [*streams, made] if made is self.output else streams
        streams = self._written_back(made, held, streams)
        grid = made.grid
        away = [s for s in streams if s.grid != grid]
        if away:
            streams = self._carried_on(grid, held, made)
            away = [s for s in streams if s.grid != grid]
        unfolded: dict[Stream, Spread] = {}
        final: list[Stream] = []
        for stream in streams:
            if stream.grid == grid:
                final.append(stream)
                continue
            old = self.cut.unfolded.get(stream)
            if old is not None and self.cut.grid == grid:
                final.append(old.inputs[0])
                unfolded[stream] = old
                continue
            if not folds(stream, grid):
                raise IrregularError
            folded, reading = fold(stream, grid)
            final.append(folded)
            unfolded[stream] = reading
        return Cut(_ordered(final), unfolded)

    def _leaves(self, held: set[Stream]) -> list[Stream]:
        """Which of the streams that are held are still needed."""
        needed: list[Stream] = []
        if self.output in held:
            return [self.output]
        seen = set()
        for stream in in_order([self.output], held):
            for part in stream.inputs:
                if part in held and part not in seen:
                    seen.add(part)
                    needed.append(part)
        return needed

    def _written_back(self, made: Stream, held: set[Stream], streams: list[Stream]) -> list[Stream]:
        """With a stream in the place of several, or of a wider one, where what follows allows it."""
        width = sum(s.channels for s in streams)
        for mixed in self._mixes_of(made):
            parts = set(_direct(mixed, held))
            bottleneck = mixed.channels < made.channels and self._read_by_a_map(mixed)
            if mixed.grid != made.grid or (len(parts) < 2 and not bottleneck) or not parts <= held:
                continue
            found = self._leaves(held | {mixed})
            if sum(s.channels for s in found) < width:
                return self._written_back(mixed, held | {mixed}, found)
        return streams

    def _mixes_of(self, made: Stream) -> list[Stream]:
        """Streams that are made from one by `Mixed` alone."""
        found: dict[Stream, None] = {}
        waiting = [made]
        while waiting:
            for consumer in self.consumers.get(waiting.pop(0), ()):
                if isinstance(consumer.made, Mixed) and consumer not in found:
                    found[consumer] = None
                    waiting.append(consumer)
        return list(found)

    def _read_by_a_map(self, stream: Stream) -> bool:
        readers = self.consumers.get(stream, [])
        return any(
            (isinstance(r.made, Mixed) and r.made.is_linear_map) or isinstance(r.made, Spread)
            for r in readers
        ) and not (isinstance(stream.made, Mixed) and not self._has_a_map(stream))

    def _has_a_map(self, stream: Stream) -> bool:
        """Whether there is a linear map among the `Mixed` operations that make it."""
        while isinstance(stream.made, Mixed):
            if stream.made.is_linear_map:
                return True
            stream = stream.inputs[0]
        return False

    def _carried_on(self, grid: Grid, held: set[Stream], made: Stream) -> list[Stream]:
        """With what others on another grid become on this one, where the old cut tells."""
        here, ready = self.cut.expressions(), set()
        for stream in in_order([self.output], held):
            if isinstance(stream.made, Spread) and stream.grid == grid:
                try:
                    here.of(stream)
                    ready.add(stream)
                except NeedsCutError:
                    continue
        return self._leaves(held | ready)

    def _general(self, cores: list[Stream]) -> list[Stream]:
        """One step over as many cores as it takes until a node layer fits."""
        done = set(self.cut.held)
        for number, core in enumerate(cores):
            done.add(core)
            streams = self._leaves(done)
            fits = len({s.grid for s in streams}) == 1 and not set(streams) <= self.cut.held
            if fits and prod(streams[0].grid) <= prod(self.cut.grid):
                self._go(Cut(_ordered(streams)), None, tuple(cores[: number + 1]))
                return cores[number + 1 :]
        self._go(Cut((self.output,)), None, tuple(cores))
        return []


def _direct(stream: Stream, held: set[Stream]) -> list[Stream]:
    """What a stream is made of, as far as `Mixed` goes."""
    if stream in held or not isinstance(stream.made, Mixed):
        return [stream]
    return [leaf for part in stream.inputs for leaf in _direct(part, held)]


def _mixes(core: Stream) -> bool:
    return isinstance(core.made, Attended)


def _ordered(streams: Sequence[Stream]) -> tuple[Stream, ...]:
    """Variances first, as they are isolated."""
    return tuple(sorted(streams, key=lambda s: not isinstance(s.made, MeanSquare)))
