"""Linear maps, sums, scales by constants, concatenation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interbasis.models.traced import values
from interbasis.models.traced.recognise import OpRule, StreamBuilder, constant, traced_shape
from interbasis.models.traced.streams import CoreOp, PositionTable, Stream, selection
from interbasis.models.traced.values import AttentionScores, NoRuleError, PrefixValue, StreamView, Value
from interbasis.network.cores import PositionScale


def is_computed(value: Any) -> bool:
    """Whether a value is a view of a stream, or can be one."""
    return isinstance(value, (StreamView, PrefixValue))


def apply_matrix(
    builder: StreamBuilder, x: StreamView, weight: Tensor, bias: Tensor | None, axis: int
) -> StreamView:
    """W along one dimension, whose numbers are channels of one position."""

    def attempt(x: StreamView) -> StreamView:
        rows = values.group(x, axis, builder.samples)
        groups, width, out = len(rows.channels), x.stream.channels, weight.shape[0]
        if groups == 1 and torch.equal(rows.channels[0], torch.arange(width)):
            matrix = weight
        else:
            matrix = torch.zeros(groups, out, width, dtype=torch.float64)
            index = rows.channels[:, None].expand(-1, out, -1)
            matrix.scatter_add_(2, index, weight.expand(groups, -1, -1))
            matrix = matrix.flatten(0, 1)
        shift = (weight.new_zeros(out) if bias is None else bias).repeat(groups)
        stream = builder.mixed([(x.stream, matrix)], shift, is_linear_map=True)
        return StreamView(stream, rows.result(out, axis))

    return builder.placed(attempt, x)


def linear(builder: StreamBuilder, x: Value, weight: Any, bias: Any) -> Value:
    view = builder.view(x, -1)
    return apply_matrix(builder, view, constant(weight).double(), constant(bias), view.index.ndim - 1)


def addmm(builder: StreamBuilder, bias: Any, x: Value, weight: Any, *options: Any) -> Value:
    return linear(builder, x, constant(weight).T, bias)


def by_constants(
    builder: StreamBuilder, x: StreamView, scale: Tensor | float, shift: Tensor | float
) -> StreamView:
    """scale ∘ x + shift with constants of any shape; where these differ between positions, by cores."""
    factor, offset = (torch.as_tensor(part, dtype=torch.float64) for part in (scale, shift))
    shape = torch.broadcast_shapes(x.shape, factor.shape, offset.shape)

    def attempt(x: StreamView) -> StreamView:
        aligned = values.align([x.expand(shape)], builder.samples)
        reason = "a constant differs between positions"
        try:
            factors, offsets = (aligned.same_at_all_sites(part, reason) for part in (factor, offset))
        except NoRuleError:
            if not builder.follow_cores([x.stream]):
                raise
            stream = builder.select(x.stream, aligned.channels[0])
            tables = (aligned.by_position(part, builder.samples) for part in (factor, offset))
            return StreamView(_by_tables(builder, stream, *tables), aligned.index)
        matrix = selection(aligned.channels[0], x.stream.channels) * factors[:, None]
        return StreamView(builder.mixed([(x.stream, matrix)], offsets.clone()), aligned.index)

    return builder.placed(attempt, x, flat=False)


def _by_tables(builder: StreamBuilder, x: Stream, factors: Tensor, offsets: Tensor) -> Stream:
    """x times and plus constants of every position, [T, channels] each."""
    builder.fixed_lengths = True
    identity = torch.eye(x.channels, dtype=torch.float64)
    if (factors != 1).any():
        x = builder.stream(CoreOp((x,), PositionScale(factors)), x.grid, x.channels)
    if (offsets == 0).all():
        return x
    table = builder.stream(PositionTable((x,), PositionScale(offsets)), x.grid, x.channels)
    return builder.mixed([(x, identity), (table, identity)])


def weighted_sum(builder: StreamBuilder, first: StreamView, second: StreamView, sign: float) -> StreamView:
    """first + sign · second."""
    shape = torch.broadcast_shapes(first.shape, second.shape)

    def attempt(*views: StreamView) -> StreamView:
        aligned = values.align(views, builder.samples)
        weights = [selection(c, v.stream.channels) for c, v in zip(aligned.channels, views, strict=True)]
        weights[1] = sign * weights[1]
        parts = [(view.stream, weight) for view, weight in zip(views, weights, strict=True)]
        scales = [v.stream.op.core.scale for v in views if _is_scaled(v.stream)]  # type: ignore[attr-defined]
        if len(scales) == 2:  # a turn: both of its parts are one core
            op = CoreOp(tuple(v.stream.inputs[0] for v in views), PositionScale(torch.cat(scales, dim=1)))
            whole = builder.stream(op, views[0].stream.grid, sum(v.stream.channels for v in views))
            parts = [(whole, torch.cat(weights, dim=1))]
        return StreamView(builder.mixed(parts), aligned.index)

    return builder.placed(attempt, first.expand(shape), second.expand(shape))


def _is_scaled(stream: Stream) -> bool:
    """Whether a stream is another one times constants of every position."""
    return stream.is_core(PositionScale) and not isinstance(stream.op, PositionTable)


def view_pair(builder: StreamBuilder, first: Value, second: Value) -> tuple[StreamView, StreamView]:
    """Views of two values; one of the prefix gets the layout that fits the other."""
    if isinstance(first, StreamView) and isinstance(second, PrefixValue):
        return first, _view_beside(builder, second, first)
    if isinstance(second, StreamView) and isinstance(first, PrefixValue):
        return _view_beside(builder, first, second), second
    return builder.view(first), builder.view(second)


def _view_beside(builder: StreamBuilder, value: PrefixValue, other: StreamView) -> StreamView:
    for axis in (-1, 1, 2):
        if -value.value.ndim <= axis < value.value.ndim:
            view = builder.view(value, axis)
            shape = torch.broadcast_shapes(view.shape, other.shape)
            try:
                values.align([view.expand(shape), other.expand(shape)], builder.samples)
                return view
            except NoRuleError:
                continue
    return builder.view(value)


def add(builder: StreamBuilder, first: Any, second: Any, alpha: float = 1, sign: float = 1.0) -> Value:
    sign = sign * float(alpha)
    for scores, mask in ((first, second), (second, first)):
        if isinstance(scores, AttentionScores):
            return scores.masked(constant(mask))
    if is_computed(first) and is_computed(second):
        return weighted_sum(builder, *view_pair(builder, first, second), sign)
    if is_computed(first):
        return by_constants(builder, builder.view(first), 1.0, sign * torch.as_tensor(constant(second)))
    return by_constants(builder, builder.view(second), sign, constant(first))


def rsub(builder: StreamBuilder, first: Any, second: Any, alpha: float = 1) -> Value:
    return add(builder, second, first, alpha, -1.0)


def neg(builder: StreamBuilder, x: Value) -> Value:
    return by_constants(builder, builder.view(x), -1.0, 0.0)


def batch_norm(
    builder: StreamBuilder, x: Value, gain: Any, bias: Any, mean: Any, *options: Any
) -> tuple[StreamView]:
    """Batch norm, in evaluation mode a scale and a shift of every channel, dimension 1."""
    variance, _, epsilon = options
    gain, bias, mean, variance = map(constant, (gain, bias, mean, variance))
    scale = (variance.double() + epsilon).rsqrt()
    scale = scale if gain is None else scale * gain
    shift = -mean * scale if bias is None else bias - mean * scale
    view = builder.view(x, 1)
    shape = [1, -1] + [1] * (view.index.ndim - 2)
    return (by_constants(builder, view, scale.view(shape), shift.view(shape)),)


def copy(builder: StreamBuilder, target: Any, source: Value, *options: Any) -> Value:
    """All numbers of a tensor, or of a slice of it, replaced by others: what is written is what comes out."""
    if not isinstance(source, StreamView):
        raise NoRuleError("numbers are replaced by constants")
    shape = target.shape if isinstance(target, Tensor) else traced_shape(target)
    return source.expand(torch.Size(shape))


def scattered(builder: StreamBuilder, target: Value, source: Value, *options: Any) -> Value:
    """A tensor with a slice of it replaced."""
    scatter: Any = builder.node.target
    return joined(builder, (target, source), constant(options), lambda indices, o: scatter(*indices, *o))


def joined(builder: StreamBuilder, parts: Sequence[Value], where: Any, join: Callable[..., Tensor]) -> Value:
    """Streams side by side as channels of one; ``join`` puts the indices of their entries together."""
    views = [part for part in parts if isinstance(part, StreamView)]
    if not all(map(is_computed, parts)) or not views:
        raise NoRuleError("constants are put beside what is computed")
    views = [p if isinstance(p, StreamView) else view_pair(builder, p, views[0])[0] for p in parts]
    streams = list(dict.fromkeys(view.stream for view in views))
    if len({stream.grid for stream in streams}) > 1:
        raise NoRuleError("values with different positions are put together")
    if len(streams) == 1:
        return StreamView(streams[0], join([view.index for view in views], where))
    widths = [stream.channels for stream in streams]
    blocks = torch.eye(sum(widths), dtype=torch.float64).split(widths, dim=1)
    starts = {stream: sum(widths[:k]) for k, stream in enumerate(streams)}
    indices = [view.sites * sum(widths) + starts[view.stream] + view.channels for view in views]
    return StreamView(builder.mixed(list(zip(streams, blocks, strict=True))), join(indices, where))


RULES: dict[str, OpRule] = {
    "linear": linear, "addmm": addmm, "add": add, "sub": partial(add, sign=-1.0), "rsub": rsub, "neg": neg,
    "cat": partial(joined, join=torch.cat), "stack": partial(joined, join=torch.stack), "copy": copy,
    "slice_scatter": scattered, "select_scatter": scattered,
    "_native_batch_norm_legit_no_training": batch_norm,
}  # fmt: skip
