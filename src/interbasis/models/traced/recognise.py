"""From a traced graph to streams: one operation after the other, by the rules in `rules/`.

What is computed from the input by embedding, reshaping and sums alone belongs to the prefix. An operation
without a rule becomes `Foreign`, a core that is differentiated automatically. Before the first core, sums
without a rule (learned positions added to patches, say) become part of the prefix, which lists them.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from interbasis.base.errors import InterbasisError
from interbasis.models.traced import streams as ops
from interbasis.models.traced import values
from interbasis.models.traced.streams import Op, Stream
from interbasis.models.traced.trace import TracedModule, location
from interbasis.models.traced.values import Constant, Keywords, NoRuleError, PrefixValue, StreamView, Value
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
"""Operations of a prefix on the input and constants before the first node layer."""
RANDOM_ONLY_IN_TRAINING = {"scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"}
"""Operations whose dropout does nothing in evaluation mode."""

Terms = Sequence[tuple[Stream, Tensor]]
"""x_i and W_i of a sum Σ W_i x_i."""
Attempt = Callable[..., StreamView]
OpRule = Callable[..., Value]
"""rule(builder, *arguments), the arguments in the order of the operation's schema, defaults filled in."""


@dataclass
class StreamBuilder:
    """Values of the nodes of a traced graph that are recognised so far, and the streams made for them."""

    traced: TracedModule
    values: dict[fx.Node, Value] = field(default_factory=dict)
    prefix_views: dict[tuple[fx.Node, int], StreamView] = field(default_factory=dict)
    """Views of streams that the prefix computes, by node and axis of the channels."""
    flat: dict[Stream, Stream] = field(default_factory=dict)
    """Streams whose positions were flattened, and what they became."""
    fixed_lengths: bool = False
    """Whether something depends on the number of positions of the example."""
    node: fx.Node = field(init=False)
    """Node that is being recognised."""

    @property
    def samples(self) -> int:
        return self.traced.samples

    # making streams

    def stream(self, op: Op, grid: Grid, channels: int) -> Stream:
        return Stream(grid, channels, op, location(self.node))

    def mixed(
        self, parts: Terms, bias: Tensor | None = None, grid: Grid | None = None, is_linear_map: bool = False
    ) -> Stream:
        """Σ W_i x_i + b."""
        streams, weights = tuple(s for s, _ in parts), tuple(w for _, w in parts)
        bias = torch.zeros(len(weights[0]), dtype=torch.float64) if bias is None else bias
        grid = streams[0].grid if grid is None else grid
        return self.stream(ops.Mixed(streams, weights, bias, is_linear_map), grid, len(bias))

    def select(self, stream: Stream, channels: Tensor, grid: Grid | None = None) -> Stream:
        """Channels of a stream; the stream itself where these are all of them in order."""
        same_grid = grid is None or grid == stream.grid
        if same_grid and torch.equal(channels, torch.arange(stream.channels)):
            return stream
        return self.mixed([(stream, ops.selection(channels, stream.channels))], grid=grid)

    def view(self, value: Value, axis: int | None = None) -> StreamView:
        """View of a value; one of the prefix gets a stream, with its channels along ``axis``."""
        if isinstance(value, StreamView):
            return value
        if not isinstance(value, PrefixValue) or not value.value.is_floating_point():
            raise NoRuleError("expected numbers that are computed from the input")
        for (node, _), view in self.prefix_views.items():
            if node is value.node and (axis is None or values.group_if_possible(view, axis, self.samples)):
                return view
        return self._prefix_view(value, default_axis(value.value.ndim) if axis is None else axis)

    def _prefix_view(self, value: PrefixValue, axis: int) -> StreamView:
        tensor, axis = value.value, axis % value.value.ndim
        samples_axes = [k for k, size in enumerate(tensor.shape) if size == self.samples and k != axis]
        if not samples_axes:
            raise InterbasisError(
                f"the samples of the batch are mixed {location(value.node)}; expected a module that keeps "
                "them in a dimension of their own before its first layer"
            )
        positions_axes = [k for k in range(tensor.ndim) if k not in (samples_axes[0], axis)]
        grid, op = tuple(tensor.shape[k] for k in positions_axes), ops.PrefixOutput
        stream = self.stream(op((), value.node, samples_axes[0], axis), grid, tensor.shape[axis])
        view = self.arranged(stream, [samples_axes[0], *positions_axes, axis], list(tensor.shape))
        self.prefix_views[value.node, axis] = view
        return view

    def arranged(self, stream: Stream, order: list[int], shape: Sequence[int]) -> StreamView:
        """View of a stream as a tensor whose dimensions are samples, positions and channels in this order."""
        index = torch.arange(prod(shape)).view([shape[k] for k in order])
        return StreamView(stream, index.permute(*[order.index(k) for k in range(len(order))]))

    def placed(self, attempt: Attempt, *views: StreamView, flat: bool = True) -> StreamView:
        """attempt(*views), with the positions that they hold picked or flattened where that is needed."""
        reason: NoRuleError | None = None
        ways: tuple[Callable[[StreamView], StreamView | None], ...]
        ways = lambda view: view, self.picked, lambda view: self.flattened(view) or view
        for way in ways if flat else ways[:2]:
            changed = [other for view in views if (other := way(view)) is not None]
            try:
                if len(changed) == len(views):
                    return attempt(*changed)
            except NoRuleError as error:
                reason = reason or error
        raise reason or NoRuleError("numbers of different positions meet")

    def picked(self, view: StreamView) -> StreamView | None:
        """The same numbers in a stream of the positions that a view holds; None where these are all."""
        stream, positions = view.stream, view.stream.positions
        sample, position = view.sites // positions, view.sites % positions
        picked, number = position.unique(return_inverse=True)
        if len(picked) == positions:
            return None
        grid = () if len(picked) == 1 else (len(picked),)
        index = picked[:, None, None]
        stencil = Stencil(stream.grid, grid, index, torch.ones(index.shape, dtype=torch.float64))
        op = ops.Gathered((stream,), stencil, f"{len(picked)} of {positions} positions")
        where = (sample * len(picked) + number) * stream.channels + view.channels
        return StreamView(self.stream(op, grid, stream.channels), where)

    def flattened(self, view: StreamView) -> StreamView | None:
        """The same numbers in a stream of one position; None where there is only one."""
        stream = view.stream
        if not stream.grid:
            return None
        if stream not in self.flat:
            op = ops.Flattened((stream,), Stencil.flattened(stream.grid))
            self.flat[stream] = self.stream(op, (), stream.positions * stream.channels)
        return StreamView(self.flat[stream], view.index)

    # recognising nodes

    def run(self) -> Value:
        """Recognise all nodes and return the value of the output."""
        for node in self.traced.graph.nodes:
            if node is self.traced.input:
                self.values[node] = PrefixValue(node, self.traced.example)
            elif node.op == "placeholder" and node.name in self.traced.constants:
                self.values[node] = Constant(self.traced.constants[node.name])
            elif node.op == "call_function":
                self.node = node
                self.values[node] = self.recognise(node)
        return self.values[self.traced.output]

    def arguments(self, node: fx.Node) -> tuple[tuple[Any, ...], Keywords]:
        lookup: Any = self.values.__getitem__
        arguments: Any = fx.node.map_arg((node.args, node.kwargs), lookup)
        return arguments

    def recognise(self, node: fx.Node) -> Value:
        args, kwargs = self.arguments(node)
        name, leaves = op_name(node), tree_leaves((args, kwargs))
        if name in CHECKS:
            return Constant(None)
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if random and "dropout" not in name and name not in RANDOM_ONLY_IN_TRAINING:
            raise InterbasisError(
                f"random numbers are drawn {location(node)} in evaluation mode, too; expected a module that "
                "computes the same every time"
            )
        if not any(isinstance(leaf, values.COMPUTED) for leaf in leaves):
            sized = any(isinstance(leaf, Constant) and leaf.node is not None for leaf in leaves)
            return Constant(call(node, args, kwargs), node if sized else None)
        if name in ("sym_size", "size"):
            return Constant(traced_shape(args[0])[args[1]], node)
        result = node.meta.get("val")
        integers = isinstance(result, Tensor) and not result.is_floating_point()
        stays = integers or name in MOVES | CASTS | SUMS or node.target is operator.getitem
        if stays and not any(isinstance(leaf, values.RECOGNISED) for leaf in leaves):
            return self._in_prefix(node, call(node, args, kwargs))
        return self._by_rule(node, name, args, kwargs)

    def _by_rule(self, node: fx.Node, name: str, args: tuple[Any, ...], kwargs: Keywords) -> Value:
        from interbasis.models.traced.rules import RULES
        from interbasis.models.traced.rules.foreign import foreign

        if name in CASTS and not isinstance(args[0], values.Integers):
            return Constant(args[0].value) if isinstance(args[0], Constant) else args[0]
        try:
            if name in MOVES:
                return self._move(node, args, kwargs)
            if name in RULES:
                return RULES[name](self, *plain(_in_schema_order(node, args, kwargs)))
            raise NoRuleError("it has no rule")
        except NoRuleError as reason:
            leaves = tree_leaves((args, kwargs))
            streams = [leaf.stream for leaf in leaves if isinstance(leaf, StreamView)]
            linear = not self.follow_cores(streams)
            scored = any(isinstance(leaf, (values.AttentionScores, values.Integers)) for leaf in leaves)
            if linear and not scored and name in SUMS | {"getitem"}:
                return self._in_prefix(node, self.traced.evaluate(node, self.traced.example))
            return foreign(self, node, args, kwargs, str(reason))

    def follow_cores(self, streams: Sequence[Stream]) -> bool:
        """Whether a core lies between the input and one of these streams."""
        return any(isinstance(stream.op, ops.CORES) for stream in ops.in_order(streams, set()))

    def _in_prefix(self, node: fx.Node, value: Any) -> Value:
        """Part of the prefix, computed there from the graph."""
        if isinstance(value, Tensor):
            return PrefixValue(node, value)
        return tuple(PrefixValue(node, part) for part in value)

    def _move(self, node: fx.Node, args: tuple[Any, ...], kwargs: Keywords) -> Value:
        moved, *options = args
        if isinstance(moved, tuple):
            return moved[options[0]]
        if not isinstance(moved, StreamView) or any(
            isinstance(leaf, values.COMPUTED) for leaf in tree_leaves((options, kwargs))
        ):
            raise NoRuleError("numbers are moved to where other numbers of the input say")
        index = call(node, [moved.index.contiguous(), *options], kwargs)
        if isinstance(index, Tensor):
            return StreamView(moved.stream, index)
        return tuple(StreamView(moved.stream, part) for part in index)


def _in_schema_order(node: fx.Node, args: Sequence[Any], kwargs: Keywords) -> list[Any]:
    """All arguments of an operation by position, defaults filled in."""
    target: Any = node.target
    unnamed = target._schema.arguments[len(args) :]
    return [*args, *(kwargs.get(argument.name, argument.default_value) for argument in unnamed)]


def plain(arguments: Any) -> Any:
    """Nested arguments with plain values in the place of constants."""
    return tree_map(lambda leaf: leaf.value if isinstance(leaf, Constant) else leaf, arguments)


def op_name(node: fx.Node) -> str:
    """`linear` of aten.linear.default, `getitem` of operator.getitem."""
    target: Any = node.target
    return target._schema.name.split("::")[1] if hasattr(target, "_schema") else target.__name__


def call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Run the operation on constants and on values of the prefix."""

    def concrete(leaf: Any) -> Any:
        if isinstance(leaf, (Constant, PrefixValue)):
            return leaf.value
        if isinstance(leaf, values.COMPUTED):
            raise NoRuleError("it is computed from the input")
        return leaf

    target: Any = node.target
    return target(*tree_map(concrete, args), **tree_map(concrete, kwargs))


def traced_shape(value: Value) -> tuple[int, ...]:
    """Shape of the traced tensor."""
    assert not isinstance(value, tuple)
    return tuple(value.value.shape if isinstance(value, (Constant, PrefixValue)) else value.shape)


def constant(value: Any) -> Any:
    """The number or tensor of an argument, which must not depend on the input."""
    if any(isinstance(leaf, values.COMPUTED) for leaf in tree_leaves(value)):
        raise NoRuleError("an argument that should be constant depends on the input")
    return value


def default_axis(ndim: int) -> int:
    """Axis of the channels if nothing else says so: last in rows and sequences, second in images."""
    return -1 if ndim <= 3 else 1
