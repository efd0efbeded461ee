"""From a step between two cuts to a section: skip, read, write and core."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.models.traced.cuts import Cut, Step
from interbasis.models.traced.expressions import Expression, Term
from interbasis.models.traced.streams import (
    Applied,
    Attended,
    Divided,
    Foreign,
    MaxPooled,
    MeanSquare,
    Product,
    Stream,
    evaluate,
)
from interbasis.network.cores import (
    Attention,
    Core,
    Elementwise,
    Gated,
    General,
    Largest,
    Linear,
    Normalize,
    Variance,
)
from interbasis.network.network import NodeLayer, Section
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import StencilSection, add_taps, patch_matrix


def section(step: Step, source: NodeLayer, target: NodeLayer) -> Section:
    """F = skip + write ∘ core ∘ read."""
    if step.region:
        return _general(step, source, target)
    here = step.source.expressions()
    if step.core is None:
        return _assembled(step, (source, target), [], Linear(), [here.of(s) for s in step.target.streams])
    made = step.core.made
    if isinstance(made, Foreign):
        return _foreign(step, made, source, target)
    reads = [here.of(part) for part in step.core.inputs]
    core: Core
    if isinstance(made, Applied):
        core = Elementwise(made.activation)
    elif isinstance(made, MeanSquare):
        core = Variance(made.inputs[0].channels)
    elif isinstance(made, Divided):
        core = Normalize(made.epsilon)
    elif isinstance(made, Attended):
        core = Attention(made.shape)
    elif isinstance(made, Product):
        core = Gated(made.activation)
    else:
        assert isinstance(made, MaxPooled)
        reads = [_at_tap(reads[0], made.stencil, k) for k in range(made.stencil.taps)]
        core = Largest(made.stencil.taps)
    return _assembled(step, (source, target), reads, core, _targets(step))


def _targets(step: Step) -> list[Expression]:
    core = () if step.core is None else (step.core,)
    wider = step.source.expressions(*core)
    return [wider.of(stream) for stream in step.target.streams]


def _at_tap(expression: Expression, stencil: Stencil, k: int) -> Expression:
    """One tap of what a maximum is taken of."""
    one = Stencil(stencil.source, stencil.target, stencil.index[:, k : k + 1], stencil.weight[:, k : k + 1])
    return Expression(expression.bias, tuple(Term(t.stream, t.taps, one) for t in expression.terms))


def _assembled(
    step: Step,
    ends: tuple[NodeLayer, NodeLayer],
    reads: Sequence[Expression],
    core: Core,
    targets: Sequence[Expression],
) -> Section:
    source, target = ends
    columns, rows = _places(step.source), _places(step.target)
    read_rows = sum(len(read.bias) for read in reads)
    stencils = _Stencils(step.source, step.target, [*reads, *targets], step.core)
    read, skip = (stencils.zeros(count, source.width) for count in (read_rows, target.width))
    start = 0
    for expression in reads:
        stencils.add(read, expression, start, columns)
        start += len(expression.bias)
    skip[0, 0] = 1
    write = torch.zeros(target.width, step.core.channels if step.core else 0, dtype=torch.float64)
    at_zero = core.at_zero(read.new_zeros(read_rows))
    if not at_zero.isfinite().all():
        raise InterbasisError(
            f"{core} {step.core.place if step.core else ''} is not finite at 0, where integrated gradients "
            "begin; begin after it with layers=[…], or write it together with its neighbours as one function "
            "that is finite at 0"
        )
    for stream, expression in zip(step.target.streams, targets, strict=True):
        at = rows[stream]
        here = slice(at, at + stream.channels)
        own = [t for t in expression.terms if t.stream is step.core]
        rest = tuple(t for t in expression.terms if t.stream is not step.core)
        stencils.add(skip, Expression(expression.bias, rest), at, columns)
        for term in own:
            write[here] += term.taps[:, 0]
            skip[here, 0] += term.taps[:, 0] @ at_zero.expand(write.shape[1])
    if stencils.whole is None:
        return Section(source, target, skip, read, write, core)
    return StencilSection(source, target, skip, read, write, core, stencil=stencils.whole)


class _Stencils:
    """All taps that a section reads, as one stencil; none where every position reads itself."""

    def __init__(self, source: Cut, target: Cut, expressions: Sequence[Expression], core: Stream | None):
        terms = [t for e in expressions for t in e.terms if t.stream is not core]
        self.whole: Stencil | None = None
        self.where: dict[int, list[int]] = {}
        spread = {id(t.stencil): t.stencil for t in terms if t.stencil is not None}
        if not spread and source.grid == target.grid:
            return
        for stencil in sorted(spread.values(), key=lambda s: s.window is None):
            self._join(stencil)
        own = self.whole is None or any(t.stencil is None for t in terms)
        if own and source.grid == target.grid:
            self._join(Stencil.pointwise(source.grid), key=0)

    def _join(self, stencil: Stencil, key: int | None = None) -> None:
        key = id(stencil) if key is None else key
        if self.whole is None:
            self.whole, self.where[key] = stencil, list(range(stencil.taps))
        else:
            self.whole, self.where[key] = self.whole.with_taps(stencil)

    def zeros(self, rows: int, width: int) -> Tensor:
        like = torch.zeros((), dtype=torch.float64)
        if self.whole is None:
            return like.new_zeros(rows, width)
        return patch_matrix(self.whole, rows, width, like)

    def add(self, matrix: Tensor, expression: Expression, row: int, columns: dict[Stream, int]) -> None:
        matrix[row : row + len(expression.bias), 0] += expression.bias
        for term in expression.terms:
            column = columns[term.stream]
            if self.whole is None:
                matrix[row : row + len(term.taps), column : column + term.taps.shape[2]] += term.taps[:, 0]
            else:
                where = self.where[0 if term.stencil is None else id(term.stencil)]
                for number in sorted(set(where)):  # several taps may be the same one of the whole stencil
                    taps = term.taps[:, [k for k, other in enumerate(where) if other == number]].sum(1)
                    add_taps(matrix, self.whole, taps[:, None], row, column, [number])


def _places(cut: Cut) -> dict[Stream, int]:
    """Where each stream begins, after the constant."""
    places, start = {}, 1
    for stream in cut.streams:
        places[stream] = start
        start += stream.channels
    return places


class FromZero(nn.Module):
    """function(u) − (1 − c) function(0) of [c | u] with c the constant, which is 1: a map of 0 to 0.

    Along the line from 0 the constant takes the share of function(0), as it does where it is a bias.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def __deepcopy__(self, memo: dict) -> "FromZero":
        return self

    def forward(self, u: Tensor) -> Tensor:  # [n, T, 1 + c_in] -> [n, T, c_out]
        inner, constant = u[..., 1:], u[:, :1, :1]
        return self.function(inner) - (1 - constant) * self.function(torch.zeros_like(inner[:1]))


def _checked(function: Callable[[Tensor], Tensor], positions: int, width: int, what: str) -> FromZero:
    """A map of 0 to 0, which must be finite there and have a derivative that autograd knows."""
    u = torch.zeros(1, positions, width, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        zero = function(u)
    try:
        if zero.requires_grad:
            cotangents = torch.ones(2, *zero.shape, dtype=zero.dtype)
            torch.autograd.grad(zero, u, cotangents, is_grads_batched=True, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        raise InterbasisError(
            f"{what} cannot be differentiated ({str(error).splitlines()[0]}); begin after it with "
            "layers=[…], or write it with operations that autograd knows"
        ) from error
    if not zero.isfinite().all():
        raise InterbasisError(
            f"{what} is not finite at 0, where integrated gradients begin; begin after it with layers=[…], "
            "or write it together with its neighbours as one function that is finite at 0"
        )
    return FromZero(function)


def _foreign(step: Step, made: Foreign, source: NodeLayer, target: NodeLayer) -> Section:
    """Its inputs side by side, the function, and its output."""
    assert step.core is not None
    here = step.source.expressions()
    widths = [part.channels for part in step.core.inputs]
    one = Expression(torch.ones(1, dtype=torch.float64), ())
    reads = [one, *(here.of(part) for part in step.core.inputs)]

    def function(u: Tensor) -> Tensor:
        return made.run(u.split(widths, dim=-1))

    positions = step.core.positions
    core = General(
        _checked(function, positions, sum(widths), made.what),
        made.what,
        made.mixes_positions and positions > 1,
    )
    return _assembled(step, (source, target), reads, core, _targets(step))


def _general(step: Step, source: NodeLayer, target: NodeLayer) -> Section:
    """Several cores in one section, by automatic differentiation."""
    wanted, cut = step.target.streams, step.source

    def function(f: Tensor) -> Tensor:  # [n, T, width - 1] -> [n, T, width' - 1]
        parts = f.split([s.channels for s in cut.streams], dim=-1)
        known = dict(zip(cut.streams, parts, strict=True))
        for fine, reading in cut.unfolded.items():
            known[fine] = reading.run([known[reading.inputs[0]]])
        return torch.cat(evaluate(wanted, known), dim=-1)

    names = ", ".join(dict.fromkeys(str(core.place) for core in step.region))
    return composed(function, (source, target), names)


@dataclass(frozen=True, eq=False)
class Regridded(Section):
    """A general section whose outputs are on a coarser grid; its skip holds the constant alone."""

    def positions_out(self, positions: int) -> slice:
        return slice(0, prod(self.target.grid or (1,)))


def composed(function: Callable[[Tensor], Tensor], ends: tuple[NodeLayer, NodeLayer], name: str) -> Section:
    """A function of all streams of a node layer as a section by automatic differentiation."""
    source, target = ends
    positions, outputs = (prod(node.grid or (1,)) for node in ends)
    if outputs > positions:
        raise InterbasisError(
            f"between {source.name} and {target.name} the grid grows from {source.grid} to {target.grid}, "
            "which is not supported in a section of several layers; name node layers before and after the "
            "layer that enlarges it"
        )
    core = General(_checked(function, positions, source.width - 1, name), name, positions > 1)
    skip = torch.zeros(target.width, source.width, dtype=torch.float64)
    skip[0, 0] = 1
    read = torch.eye(source.width, dtype=torch.float64)
    write = torch.eye(target.width, dtype=torch.float64)[:, 1:]
    kind = Section if source.grid == target.grid else Regridded
    return kind(source, target, skip, read, write, core)
