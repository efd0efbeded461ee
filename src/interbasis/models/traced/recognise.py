"""From a traced graph to streams: one operation after the other, by the rules in `rules/`.

What is computed from the input by embedding, reshaping and sums alone belongs to the prefix. An operation
without a rule becomes `Foreign`, a core that is differentiated automatically. Before the first core, sums
without a rule (learned positions added to patches, say) become part of the prefix, which lists them.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from interbasis.base.errors import InterbasisError
from interbasis.models.traced import wires
from interbasis.models.traced.streams import CoreOp, Flattened, Gathered, Given, Op, Stream, in_order
from interbasis.models.traced.trace import Traced, callers, place
from interbasis.models.traced.values import Early, Integers, Keywords, Known, Scores, Several, Value
from interbasis.models.traced.wires import MisplacedError, Wire
from interbasis.network.stencil import Stencil
from interbasis.network.window import Grid

MOVES = {
    "view", "reshape", "permute", "transpose", "flatten", "unflatten", "unsqueeze", "squeeze", "expand",
    "select", "slice", "split", "split_with_sizes", "chunk", "clone", "contiguous", "t", "detach",
    "alias", "roll", "unbind", "repeat", "flip", "index_select", "narrow", "movedim", "_unsafe_view",
    "lift_fresh_copy", "swapaxes", "tile", "repeat_interleave", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "expand_as", "view_as", "diagonal", "unfold", "index", "getitem", "moveaxis",
    "tensor_split", "hsplit", "vsplit", "_reshape_alias", "detach_",
}  # fmt: skip
"""Operations that move numbers and compute nothing."""
CASTS = {
    "_to_copy", "to", "type_as", "double", "float", "dropout", "native_dropout", "alpha_dropout",
    "feature_dropout",
}  # fmt: skip
"""Operations that return their input in evaluation mode and float64."""
CHECKS = {
    "_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size",
    "_assert_async",
}  # fmt: skip
SUMS = {
    "add", "sub", "mul", "div", "rsub", "neg", "cat", "stack", "embedding", "where", "masked_fill",
    "cumsum", "sum", "copy", "slice_scatter", "select_scatter", "arange", "full", "zeros", "ones",
    "new_zeros", "new_ones", "full_like", "zeros_like", "ones_like", "ne", "eq", "gt", "lt", "ge", "le",
    "one_hot", "constant_pad_nd", "pad", "lift_fresh",
}  # fmt: skip
"""What a prefix may do with the input and constants before the first node layer."""

Rule = Callable[["Recogniser", fx.Node, list[Any], Keywords], Value]


@dataclass
class Recogniser:
    """What is known so far."""

    traced: Traced
    values: dict[fx.Node, Value] = field(default_factory=dict)
    given: dict[tuple[fx.Node, int | None], Wire] = field(default_factory=dict)
    node: fx.Node | None = None
    """The one that is being recognised."""
    fixed_lengths: bool = False
    """Whether something depends on the number of positions of the example."""
    flat: dict[Stream, Stream] = field(default_factory=dict)
    """Streams whose positions were flattened, and what they became."""

    @property
    def samples(self) -> int:
        return self.traced.samples

    # making streams

    def stream(self, op: Op, grid: Grid, channels: int) -> Stream:
        assert self.node is not None
        return Stream(grid, channels, op, place(self.node), callers(self.node))

    def wire(self, value: Value, axis: int | None = None) -> Wire:
        """As a wire; what is the prefix's until now gets a stream, with its channels along ``axis``."""
        if isinstance(value, Wire):
            return value
        if not isinstance(value, Early) or not value.value.is_floating_point():
            raise MisplacedError("expected numbers that are computed from the input")
        for (node, _), known in self.given.items():
            if node is value.node and (axis is None or self._fits(known, axis)):
                return known
        return self._give(value, default_axis(value.value.ndim) if axis is None else axis)

    def _fits(self, wire: Wire, axis: int) -> bool:
        try:
            wires.group(wire, axis, self.samples)
            return True
        except MisplacedError:
            return False

    def _give(self, early: Early, axis: int) -> Wire:
        tensor = early.value
        axis %= tensor.ndim
        own = [k for k, size in enumerate(tensor.shape) if size == self.samples and k != axis]
        if not own:
            raise InterbasisError(
                f"the samples of the batch are mixed {place(early.node)}; expected a module that keeps "
                "them in a dimension of their own before its first layer"
            )
        rest = [k for k in range(tensor.ndim) if k not in (own[0], axis)]
        grid = tuple(tensor.shape[k] for k in rest)
        stream = self.stream(Given(early.node, own[0], axis), grid, tensor.shape[axis])
        where = wires.whole(stream, self.samples).view(self.samples, *grid, -1)
        wire = Wire(stream, where.permute(*_inverse([own[0], *rest, axis])))
        self.given[early.node, axis] = wire
        return wire

    def placed(self, wire: Wire, attempt: Callable[[Wire], Any], *, flat: bool = True) -> Any:
        """attempt(wire), with some of the positions picked or all of them flattened where that is needed."""
        try:
            return attempt(wire)
        except MisplacedError as reason:
            for other in (self.picked(wire), self.flattened(wire) if flat else None):
                if other is not None:
                    try:
                        return attempt(other)
                    except MisplacedError:
                        continue
            raise reason

    def picked(self, wire: Wire) -> Wire | None:
        found = wires.kept_positions(wire, self.samples)
        if found is None:
            return None
        positions, where = found
        old = wire.stream
        grid = wires.shrunk(old.grid, positions)
        index = torch.tensor(positions)[:, None, None]
        stencil = Stencil(old.grid, grid, index, torch.ones(index.shape, dtype=torch.float64))
        what = f"{len(positions)} of {old.positions} positions"
        return Wire(self.stream(Gathered((old,), stencil, what), grid, old.channels), where)

    def flattened(self, wire: Wire) -> Wire | None:
        old = wire.stream
        if not old.grid:
            return None
        if old not in self.flat:
            made = Flattened((old,), Stencil.flattened(old.grid))
            self.flat[old] = self.stream(made, (), old.positions * old.channels)
        return Wire(self.flat[old], wire.where)

    # running

    def run(self) -> Value:
        for node in self.traced.graph.nodes:
            if node.op == "placeholder":
                if node is self.traced.input:
                    self.values[node] = Early(node, self.traced.example)
                elif node.name in self.traced.constants:
                    self.values[node] = Known(self.traced.constants[node.name])
            elif node.op == "call_function":
                self.node = node
                self.values[node] = self.recognise(node)
        return self.values[self.traced.output]

    def recognise(self, node: fx.Node) -> Value:
        lookup: Any = self.values.__getitem__
        arguments: Any = fx.node.map_arg((node.args, node.kwargs), lookup)
        args, kwargs = arguments
        name, parts = op_name(node), _leaves((args, kwargs))
        if name in CHECKS:
            return Known(None)
        self._check_random(node, name)
        if all(isinstance(part, Known) for part in parts):
            sized = any(part.sized is not None for part in parts)
            return Known(call(node, args, kwargs), node if sized else None)
        if name in ("sym_size", "size"):
            return Known(shape_of(args[0])[args[1]], node)
        computed = any(isinstance(part, (Wire, Scores, Integers)) for part in parts)
        if not computed and self._stays_early(node, name):
            return self._early(node, args, kwargs)
        return self._by_rule(node, name, list(args), kwargs)

    def _by_rule(self, node: fx.Node, name: str, args: list[Any], kwargs: Keywords) -> Value:
        from interbasis.models.traced.rules import RULES
        from interbasis.models.traced.rules.foreign import foreign

        is_cast = name in CASTS and not isinstance(args[0], Integers)
        if is_cast and not (name != "to" and _trains(name, args)):
            return args[0] if not isinstance(args[0], Known) else Known(args[0].value)
        try:
            if name in MOVES:
                return self._move(node, args, kwargs)
            if name in RULES:
                return RULES[name](self, node, args, kwargs)
            raise MisplacedError("it has no rule")
        except MisplacedError as reason:
            if self._is_linear_so_far((args, kwargs)) and name in SUMS | {"getitem"}:
                return self._early(node, tuple(args), kwargs)
            return foreign(self, node, args, kwargs, str(reason))

    def _stays_early(self, node: fx.Node, name: str) -> bool:
        result = node.meta.get("val")
        integers = isinstance(result, Tensor) and not result.is_floating_point()
        return integers or name in MOVES | CASTS | SUMS or node.target is operator.getitem

    def _early(self, node: fx.Node, args: Any, kwargs: Any) -> Value:
        """Part of the prefix, computed there from the graph."""
        computed = any(isinstance(part, Wire) for part in _leaves((args, kwargs)))
        value = on_example(self.traced, node) if computed else call(node, args, kwargs)
        if isinstance(value, Tensor):
            return Early(node, value)
        return Several(tuple(Early(node, part) for part in value))

    def _move(self, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
        moved = args[0]
        if isinstance(moved, Several):
            return moved.parts[args[1]]
        if not isinstance(moved, Wire) or any(not isinstance(p, Known) for p in _leaves((args[1:], kwargs))):
            raise MisplacedError("numbers are moved to where other numbers of the input say")
        where = call(node, [Known(moved.where.contiguous()), *args[1:]], kwargs)
        if isinstance(where, Tensor):
            return Wire(moved.stream, where)
        return Several(tuple(Wire(moved.stream, part) for part in where))

    def _is_linear_so_far(self, arguments: Any) -> bool:
        """Whether there is no core yet on the way from the input to any of these."""
        streams = [part.stream for part in _leaves(arguments) if isinstance(part, Wire)]
        beyond = any(isinstance(part, (Scores, Integers)) for part in _leaves(arguments))
        return not beyond and not any(isinstance(s.made, CoreOp) for s in in_order(streams, set()))

    def _check_random(self, node: fx.Node, name: str) -> None:
        tags = getattr(node.target, "tags", ())
        if (
            torch.Tag.nondeterministic_seeded in tags
            and "dropout" not in name
            and name not in RANDOM_ONLY_TRAINING
        ):
            raise InterbasisError(
                f"random numbers are drawn {place(node)} in evaluation mode, too; expected a module that "
                "computes the same every time"
            )


RANDOM_ONLY_TRAINING = {"scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"}
"""Their dropout does nothing in evaluation mode."""


def on_example(traced: Traced, node: fx.Node) -> Any:
    """What a node computes on the example."""
    values: dict[fx.Node, Any] = dict.fromkeys([traced.input], traced.example)

    def value(node: fx.Node) -> Any:
        if node not in values:
            if node.op == "placeholder":
                values[node] = traced.constants[node.name]
            else:
                target: Any = node.target
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
                values[node] = target(*args, **kwargs)
        return values[node]

    return value(node)


def _trains(name: str, args: list[Any]) -> bool:
    return "dropout" in name and len(args) > 2 and isinstance(args[2], Known) and bool(args[2].value)


def op_name(node: fx.Node) -> str:
    """`linear` of aten.linear.default, `getitem` of operator.getitem."""
    target: Any = node.target
    return target._schema.name.split("::")[1] if hasattr(target, "_schema") else target.__name__


def call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """The operation on what is known of its arguments."""
    target: Any = node.target
    return target(*_concrete(args), **_concrete(kwargs))


def _concrete(arguments: Any) -> Any:
    if isinstance(arguments, (Known, Early)):
        return arguments.value
    if isinstance(arguments, Several):
        return tuple(map(_concrete, arguments.parts))
    if isinstance(arguments, (Wire, Integers)):
        raise MisplacedError("it is computed from the input")
    if isinstance(arguments, dict):
        return {name: _concrete(value) for name, value in arguments.items()}
    if isinstance(arguments, (tuple, list)):
        return (
            type(arguments)(map(_concrete, arguments))
            if type(arguments) in (tuple, list)
            else [*map(_concrete, arguments)]
        )
    return arguments


def _leaves(arguments: Any) -> list[Any]:
    """All values among nested arguments; plain numbers count as known."""
    if isinstance(arguments, Several):
        return _leaves(arguments.parts)
    if isinstance(arguments, dict):
        return _leaves(tuple(arguments.values()))
    if isinstance(arguments, (tuple, list)):
        return [leaf for part in arguments for leaf in _leaves(part)]
    values = (Known, Early, Wire, Scores, Integers)
    return [arguments if isinstance(arguments, values) else Known(arguments)]


def shape_of(value: Value) -> tuple[int, ...]:
    """Of the traced tensor."""
    if isinstance(value, (Scores, Integers)):
        return value.shape
    if isinstance(value, Wire):
        return tuple(value.where.shape)
    assert isinstance(value, (Known, Early))
    return tuple(value.value.shape)


def known(value: Any) -> Any:
    """The number or tensor of an argument that must not depend on the input."""
    if isinstance(value, (Wire, Early, Scores, Integers, Several)):
        raise MisplacedError("an argument that should be constant depends on the input")
    return value.value if isinstance(value, Known) else value


def default_axis(ndim: int) -> int:
    """Where channels lie if nothing else says so: last in rows and sequences, second in images."""
    return -1 if ndim <= 3 else 1


def _inverse(order: list[int]) -> list[int]:
    return [order.index(k) for k in range(len(order))]
