"""From planned sections between cuts to sections, the prefix before the first and the tail after the last."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from interbasis.base.errors import Explained, InterbasisError
from interbasis.models.traced import streams as ops
from interbasis.models.traced.cuts import Expression, PlannedSection
from interbasis.models.traced.recognise import CHECKS, op_name
from interbasis.models.traced.streams import PrefixOutput, Stream, evaluate
from interbasis.models.traced.trace import TracedModule, location
from interbasis.network.cores import Core, General, Linear
from interbasis.network.network import LayerMap, NodeLayer, Section
from interbasis.network.prefix import Prefix, with_constant
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import StencilSection, add_taps, patch_matrix

Map = Callable[[Tensor], Tensor]
UNLISTED = CHECKS | {"sym_size", "getitem", "_to_copy", "to", "clone", "mul", "eq"}
"""Operations of a prefix that its description leaves out."""
CONSTANT = Expression(torch.ones(1, dtype=torch.float64), ())


def make_section(planned: PlannedSection, source: NodeLayer, target: NodeLayer) -> Section:
    """F = skip + write ∘ core ∘ read."""
    if planned.region:
        names = ", ".join(dict.fromkeys(str(core.location) for core in planned.region))
        return general_section(partial(_compute, planned), (source, target), names)
    if planned.core is None:
        return _assembled(planned, (source, target), [], Linear())
    op, inputs = planned.core.op, planned.core.inputs
    here = planned.source.expressions()
    reads = [here.expression(part) for part in inputs]
    if isinstance(op, ops.CoreOp):
        if isinstance(op, ops.MaxPooled):
            reads = [_at_tap(reads[0], op.stencil, k) for k in range(op.stencil.taps)]
        elif isinstance(op, ops.PositionTable):
            reads = [CONSTANT] * planned.core.channels
        return _assembled(planned, (source, target), reads, op.core)
    assert isinstance(op, ops.Foreign)
    widths, positions = [part.channels for part in inputs], planned.core.positions
    from_zero = _from_zero(lambda u: op.run(u.split(widths, dim=-1)), positions, sum(widths), op.description)
    core = General(from_zero, op.description, op.mixes_positions and positions > 1)
    return _assembled(planned, (source, target), [CONSTANT, *reads], core)


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
    targets = [CONSTANT, *(wider.expression(stream) for stream in planned.target.streams)]
    matrices = _Matrices(planned, [*reads, *targets])
    read = matrices.matrix(reads)
    direct = [replace(e, terms=tuple(t for t in e.terms if t.stream not in cores)) for e in targets]
    skip = matrices.matrix(direct)
    write = torch.zeros(target.width, sum(stream.channels for stream in cores), dtype=torch.float64)
    for rows, expression in zip(write.split([len(e.bias) for e in targets]), targets, strict=True):
        for term in expression.terms:
            if term.stream in cores:
                rows += term.taps[:, 0]
    at_zero = core.at_zero(read.new_zeros(len(read)))
    if not at_zero.isfinite().all():
        raise _not_finite(f"{core} {cores[0].location if cores else ''}")
    skip[:, 0] += write @ at_zero.expand(write.shape[1])
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
        starts = accumulate((stream.channels for stream in source.streams), initial=1)  # after the constant
        self.columns = dict(zip(source.streams, starts, strict=False))
        self.width = 1 + source.width
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

    def matrix(self, expressions: Sequence[Expression]) -> Tensor:
        """Matrix on all that is read, with the rows of the expressions one below the other."""
        starts = list(accumulate((len(e.bias) for e in expressions), initial=0))
        matrix = torch.zeros(starts[-1], self.width, dtype=torch.float64)
        if self.stencil is not None:
            matrix = patch_matrix(self.stencil, len(matrix), self.width, matrix)
        for row, expression in zip(starts, expressions, strict=False):
            rows = slice(row, row + len(expression.bias))
            matrix[rows, 0] += expression.bias
            for term in expression.terms:
                column = self.columns[term.stream]
                if self.stencil is None:
                    matrix[rows, column : column + term.taps.shape[2]] += term.taps[:, 0]
                    continue
                numbers = self.taps[0 if term.stencil is None else id(term.stencil)]
                for number in sorted(set(numbers)):  # several taps may be the same one of the whole stencil
                    taps = term.taps[:, [k for k, other in enumerate(numbers) if other == number]].sum(1)
                    add_taps(matrix, self.stencil, taps[:, None], row, column, [number])
        return matrix


def _from_zero(function: Map, positions: int, width: int, name: str) -> Map:
    """function(u) − (1 − c) function(0) of [c | u] with c the constant, which is 1: a map of 0 to 0.

    Along the line from 0 the constant takes the share of function(0), as it does where it is a bias. The
    function is finite at 0 and has a derivative that autograd knows.
    """
    u = torch.zeros(1, positions, width, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        zero = function(u)
    remedy = "begin after it with layers=[…], or write it with operations that autograd knows"
    with Explained(f"{name} cannot be differentiated", RuntimeError, NotImplementedError, remedy=remedy):
        if zero.requires_grad:
            cotangents = torch.ones(2, *zero.shape, dtype=zero.dtype)
            torch.autograd.grad(zero, u, cotangents, is_grads_batched=True, allow_unused=True)
    if not zero.isfinite().all():
        raise _not_finite(name)

    def from_zero(u: Tensor) -> Tensor:  # [n, T, 1 + c_in] -> [n, T, c_out]
        inner, constant = u[..., 1:], u[:, :1, :1]
        return function(inner) - (1 - constant) * function(torch.zeros_like(inner[:1]))

    return from_zero


def _compute(planned: PlannedSection, f: Tensor) -> Tensor:  # [n, T, width - 1] -> [n, T, width' - 1]
    """Streams of a section's target, side by side, from those of its source."""
    cut = planned.source
    known = dict(zip(cut.streams, f.split([s.channels for s in cut.streams], dim=-1), strict=True))
    for fine, reading in cut.unfolded.items():
        known[fine] = reading.run([known[reading.inputs[0]]])
    return torch.cat(evaluate(planned.target.streams, known), dim=-1)


@dataclass(frozen=True, eq=False)
class Regridded(Section):
    """A general section whose outputs are on a coarser grid; its skip holds the constant alone."""

    def positions_out(self, positions: int) -> slice:
        return slice(0, prod(self.target.grid or (1,)))


def general_section(function: Map, ends: tuple[NodeLayer, NodeLayer], name: str) -> Section:
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


class TracedPrefix(Prefix):
    """inputs -> [n, T, 1 + channels of all streams of the first node layer], by the traced operations."""

    def __init__(self, traced: TracedModule, streams: Sequence[Stream], *, fixed_lengths: bool):
        super().__init__()
        self.traced = traced
        self.outputs = [stream.op for stream in streams if isinstance(stream.op, PrefixOutput)]
        self.module, self.steps = _subgraph(traced, [output.node for output in self.outputs])
        self.shape = tuple(traced.example.shape[1:])
        self.takes_tokens = not traced.example.is_floating_point()
        self.fixed_lengths = fixed_lengths
        self.has_rows = not streams[0].grid
        self.like = nn.Buffer(torch.zeros((), dtype=torch.float64))

    def __repr__(self) -> str:
        return f"TracedPrefix({'; '.join(self.steps) or 'the input itself'})"

    def __deepcopy__(self, memo: dict[int, object]) -> "TracedPrefix":
        """The weights are copied; the graph and its operations are shared."""
        module = fx.GraphModule(dict(self.module.named_buffers()), self.module.graph)
        for name, buffer in module.named_buffers():
            setattr(module, name, buffer.clone())
        other = copy(self)
        other._buffers, other._modules = dict(self._buffers), {"module": module}
        return other

    def has_positions(self, inputs: Tensor) -> bool:
        return not self.has_rows

    def forward(self, inputs: Tensor) -> Tensor:
        expected = f"[samples{''.join(f', {size}' for size in self.shape)}], like the example"
        first = 0 if self.fixed_lengths or self.has_rows else 1  # of the dimensions that must agree
        if inputs.ndim != len(self.shape) + 1 or tuple(inputs.shape[1 + first :]) != self.shape[first:]:
            raise InterbasisError(f"expected inputs of shape {expected}, received {list(inputs.shape)}")
        if self.takes_tokens == inputs.is_floating_point():
            kind = "integers" if self.takes_tokens else "real numbers"
            raise InterbasisError(f"expected {kind}, like the example, received {inputs.dtype}")
        converted = inputs.long() if self.takes_tokens else inputs.to(self.like.dtype)
        problem = f"inputs of shape {list(inputs.shape)} failed before the first node layer"
        with Explained(problem, RuntimeError, IndexError, remedy=f"expected {expected}"):
            f = self.traced.in_groups(self._run, converted)
        return with_constant(f.to(self.like.dtype))

    def _run(self, inputs: Tensor) -> Tensor:
        parts = []
        for output, tensor in zip(self.outputs, self.module(inputs), strict=True):
            moved = tensor.movedim((output.samples_axis, output.channels_axis), (0, -1))
            parts.append(moved.reshape(len(moved), -1, moved.shape[-1]))
        return torch.cat(parts, dim=-1)


def _subgraph(traced: TracedModule, wanted: Sequence[fx.Node]) -> tuple[fx.GraphModule, list[str]]:
    """The part of the graph that nodes require, with weights as buffers, and its operations in words."""
    graph, copies = fx.Graph(), {}
    root = nn.Module()
    needed = set(wanted)
    for node in reversed(traced.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    steps: dict[str, None] = {}
    for node in traced.graph.nodes:
        if node is traced.input:
            copies[node] = graph.placeholder("inputs")
        elif node in needed and node.op == "placeholder":
            root.register_buffer(node.name, traced.constants[node.name].detach().clone())
            copies[node] = graph.get_attr(node.name)
        elif node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if op_name(node) not in UNLISTED:
                module = location(node).module
                steps.setdefault(f"{op_name(node)}{f' in {module}' if module else ''}")
    graph.output([copies[node] for node in wanted])
    return fx.GraphModule(root, graph), list(steps)


@dataclass(frozen=True, eq=False)
class Tail(LayerMap):
    """Step from tokens of sequences of any length to the output, by the first token or the mean of all."""

    source: NodeLayer
    target: NodeLayer
    streams: tuple[Stream, ...]
    output: Stream

    @classmethod
    def from_plan(cls, plan: Sequence[PlannedSection]) -> "Tail | None":
        """The tail in the place of these sections; None where something in it depends on the length."""
        cut, output = plan[0].source, plan[-1].target.streams[0]
        pools = [s.op for s in ops.in_order([output], set(cut.streams)) if isinstance(s.op, ops.Spread)]
        if not all(isinstance(pool, ops.Gathered) and pool.any_length for pool in pools):
            return None
        target = NodeLayer("output", 1 + output.channels, grid=output.grid)
        return cls(NodeLayer("", 1 + cut.width), target, cut.streams, output)

    def __repr__(self) -> str:
        return f"Tail({self.source.name} → output: {self.output.channels} numbers per sample)"

    def __call__(self, f: Tensor) -> Tensor:  # [n, T, 1 + width] -> [n, 1, 1 + outputs]
        parts = f[..., 1:].split([stream.channels for stream in self.streams], dim=-1)
        (result,) = evaluate([self.output], dict(zip(self.streams, parts, strict=True)))
        return with_constant(result)

    def tensors(self) -> list[Tensor]:
        """Weights of its linear maps."""
        streams = ops.in_order([self.output], set(self.streams))
        values = [value for stream in streams for value in vars(stream.op).values()]
        parts = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
        return [part for part in parts if isinstance(part, Tensor)]

    def to(self, *args: Any, **kwargs: Any) -> "Tail":
        """Itself: its weights are float64 and are rounded as they are used."""
        return self
