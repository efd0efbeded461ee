"""From a planned section between two cuts to a section: skip, read, write and core."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.models.traced.cuts import PlannedSection, StreamCut
from interbasis.models.traced.expressions import Expression
from interbasis.models.traced.streams import CoreOp, Foreign, MaxPooled, Stream, evaluate
from interbasis.network.cores import Core, General, Linear
from interbasis.network.network import NodeLayer, Section
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import StencilSection, add_taps, patch_matrix


def make_section(planned: PlannedSection, source: NodeLayer, target: NodeLayer) -> Section:
    """F = skip + write ∘ core ∘ read."""
    if planned.region:
        return _general(planned, source, target)
    if planned.core is None:
        return _assembled(planned, (source, target), [], Linear())
    op, inputs = planned.core.op, planned.core.inputs
    assert isinstance(op, CoreOp)
    here = planned.source.expressions()
    reads = [here.expression(part) for part in inputs]
    if not isinstance(op, Foreign):
        if isinstance(op, MaxPooled):
            reads = [_at_tap(reads[0], op.stencil, k) for k in range(op.stencil.taps)]
        return _assembled(planned, (source, target), reads, op.core())
    widths, positions = [part.channels for part in inputs], planned.core.positions

    def function(u: Tensor) -> Tensor:
        return op.run(u.split(widths, dim=-1))

    from_zero = _from_zero(function, positions, sum(widths), op.description)
    core = General(from_zero, op.description, op.mixes_positions and positions > 1)
    constant = Expression(torch.ones(1, dtype=torch.float64), ())
    return _assembled(planned, (source, target), [constant, *reads], core)


def _at_tap(expression: Expression, stencil: Stencil, k: int) -> Expression:
    """Expression of a single tap of the windows that a maximum is taken of."""
    tap = Stencil(stencil.source, stencil.target, stencil.index[:, k : k + 1], stencil.weight[:, k : k + 1])
    return replace(expression, terms=tuple(replace(term, stencil=tap) for term in expression.terms))


def _assembled(
    planned: PlannedSection, ends: tuple[NodeLayer, NodeLayer], reads: Sequence[Expression], core: Core
) -> Section:
    source, target = ends
    cores = () if planned.core is None else (planned.core,)
    wider = planned.source.expressions(*cores)
    targets = [wider.expression(stream) for stream in planned.target.streams]
    matrices = _Matrices(planned, [*reads, *targets])
    read_rows = sum(len(read.bias) for read in reads)
    read, skip = (matrices.zeros(count, source.width) for count in (read_rows, target.width))
    row = 0
    for expression in reads:
        matrices.add(read, expression, row)
        row += len(expression.bias)
    skip[0, 0] = 1
    write = torch.zeros(target.width, sum(stream.channels for stream in cores), dtype=torch.float64)
    at_zero = core.at_zero(read.new_zeros(read_rows))
    if not at_zero.isfinite().all():
        raise _not_finite(f"{core} {cores[0].location if cores else ''}")
    row = 1
    for expression in targets:
        rows = slice(row, row + len(expression.bias))
        direct = tuple(term for term in expression.terms if term.stream not in cores)
        matrices.add(skip, Expression(expression.bias, direct), row)
        for term in expression.terms:
            if term.stream in cores:
                write[rows] += term.taps[:, 0]
                skip[rows, 0] += term.taps[:, 0] @ at_zero.expand(write.shape[1])
        row = rows.stop
    if matrices.stencil is None:
        return Section(source, target, skip, read, write, core)
    return StencilSection(source, target, skip, read, write, core, stencil=matrices.stencil)


def _not_finite(name: str) -> InterbasisError:
    return InterbasisError(
        f"{name} is not finite at 0, where integrated gradients begin; begin after it with layers=[…], "
        "or write it together with its neighbours as one function that is finite at 0"
    )


class _Matrices:
    """Matrices over all taps that a section reads, as one stencil; none where every position reads itself."""

    def __init__(self, planned: PlannedSection, expressions: Sequence[Expression]):
        source, target = planned.source, planned.target
        self.columns = _starts(source)
        self.stencil: Stencil | None = None
        self.taps: dict[int, list[int]] = {}
        """Taps of each expression's stencil among all, by its id; 0 is a position by itself."""
        terms = [t for e in expressions for t in e.terms if t.stream is not planned.core]
        spread = {id(t.stencil): t.stencil for t in terms if t.stencil is not None}
        if not spread and source.grid == target.grid:
            return
        for stencil in sorted(spread.values(), key=lambda s: s.window is None):
            self._join(stencil, id(stencil))
        pointwise = self.stencil is None or any(t.stencil is None for t in terms)
        if pointwise and source.grid == target.grid:
            self._join(Stencil.pointwise(source.grid), 0)

    def _join(self, stencil: Stencil, key: int) -> None:
        if self.stencil is None:
            self.stencil, self.taps[key] = stencil, list(range(stencil.taps))
        else:
            self.stencil, self.taps[key] = self.stencil.with_taps(stencil)

    def zeros(self, rows: int, width: int) -> Tensor:
        like = torch.zeros((), dtype=torch.float64)
        if self.stencil is None:
            return like.new_zeros(rows, width)
        return patch_matrix(self.stencil, rows, width, like)

    def add(self, matrix: Tensor, expression: Expression, row: int) -> None:
        """Add an expression to the rows of a matrix from ``row`` on."""
        matrix[row : row + len(expression.bias), 0] += expression.bias
        for term in expression.terms:
            column = self.columns[term.stream]
            if self.stencil is None:
                matrix[row : row + len(term.taps), column : column + term.taps.shape[2]] += term.taps[:, 0]
                continue
            numbers = self.taps[0 if term.stencil is None else id(term.stencil)]
            for number in sorted(set(numbers)):  # several taps may be the same one of the whole stencil
                taps = term.taps[:, [k for k, other in enumerate(numbers) if other == number]].sum(1)
                add_taps(matrix, self.stencil, taps[:, None], row, column, [number])


def _starts(cut: StreamCut) -> dict[Stream, int]:
    """Columns where the streams of a cut begin, after the constant."""
    starts, start = {}, 1
    for stream in cut.streams:
        starts[stream] = start
        start += stream.channels
    return starts


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


def _from_zero(function: Callable[[Tensor], Tensor], positions: int, width: int, name: str) -> FromZero:
    """A map of 0 to 0, of a function that is finite there and has a derivative that autograd knows."""
    u = torch.zeros(1, positions, width, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        zero = function(u)
    try:
        if zero.requires_grad:
            cotangents = torch.ones(2, *zero.shape, dtype=zero.dtype)
            torch.autograd.grad(zero, u, cotangents, is_grads_batched=True, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        raise InterbasisError(
            f"{name} cannot be differentiated ({str(error).splitlines()[0]}); begin after it with "
            "layers=[…], or write it with operations that autograd knows"
        ) from error
    if not zero.isfinite().all():
        raise _not_finite(name)
    return FromZero(function)


def _general(planned: PlannedSection, source: NodeLayer, target: NodeLayer) -> Section:
    """Several cores in one section, by automatic differentiation."""
    wanted, cut = planned.target.streams, planned.source

    def function(f: Tensor) -> Tensor:  # [n, T, width - 1] -> [n, T, width' - 1]
        parts = f.split([s.channels for s in cut.streams], dim=-1)
        known = dict(zip(cut.streams, parts, strict=True))
        for fine, reading in cut.unfolded.items():
            known[fine] = reading.run([known[reading.inputs[0]]])
        return torch.cat(evaluate(wanted, known), dim=-1)

    names = ", ".join(dict.fromkeys(str(core.location) for core in planned.region))
    return general_section(function, (source, target), names)


@dataclass(frozen=True, eq=False)
class Regridded(Section):
    """A general section whose outputs are on a coarser grid; its skip holds the constant alone."""

    def positions_out(self, positions: int) -> slice:
        return slice(0, prod(self.target.grid or (1,)))


def general_section(
    function: Callable[[Tensor], Tensor], ends: tuple[NodeLayer, NodeLayer], name: str
) -> Section:
    """A function of all streams of a node layer as a section by automatic differentiation."""
    source, target = ends
    positions, outputs = (prod(node.grid or (1,)) for node in ends)
    if outputs > positions:
        raise InterbasisError(
            f"between {source.name} and {target.name} the grid grows from {source.grid} to {target.grid}, "
            "which is not supported in a section of several layers; name node layers before and after the "
            "layer that enlarges it"
        )
    core = General(_from_zero(function, positions, source.width - 1, name), name, positions > 1)
    skip = torch.zeros(target.width, source.width, dtype=torch.float64)
    skip[0, 0] = 1
    read = torch.eye(source.width, dtype=torch.float64)
    write = torch.eye(target.width, dtype=torch.float64)[:, 1:]
    kind = Section if source.grid == target.grid else Regridded
    return kind(source, target, skip, read, write, core)
