"""Means, variances and norms: the mean square of a stream, the division by its root, gain and bias."""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from interbasis.models.traced.recognise import OpRule, StreamBuilder, constant
from interbasis.models.traced.rules.linear import apply_matrix, batch_norm, by_constants
from interbasis.models.traced.streams import MEAN, CoreOp, Gathered, Mixed, Stream, selection
from interbasis.models.traced.values import NoRuleError, StreamView, Value, align, group
from interbasis.network.cores import Core, Elementwise, GroupNorm, HeadNorm, Normalize, Variance
from interbasis.network.stencil import Stencil
from interbasis.network.window import Grid


def layer_norm(builder: StreamBuilder, x: Value, shape: Any, gain: Any, bias: Any, *options: Any) -> Value:
    return _normed(builder, x, list(shape), options[0], (gain, bias), centred=True)


def rms_norm(builder: StreamBuilder, x: Value, shape: Any, gain: Any, epsilon: float | None) -> StreamView:
    epsilon = torch.finfo(torch.float64).eps if epsilon is None else epsilon
    return _normed(builder, x, list(shape), epsilon, (gain, None), centred=False)


def _normed(
    builder: StreamBuilder, x: Value, shape: list[int], epsilon: float, affine: Sequence[Any], centred: bool
) -> StreamView:
    """Norm over the last dimensions, which must be all channels of one position."""
    gain, bias = map(constant, affine)
    view, width = builder.view(x, -1), prod(shape)
    flat = StreamView(view.stream, view.index.flatten(-len(shape)))

    def attempt(flat: StreamView) -> StreamView:
        axis = flat.index.ndim - 1
        rows = group(flat, axis, builder.samples)
        if len(rows.channels) > 1:
            raise NoRuleError("a norm of parts of the channels has no closed form")
        select = _select_centred if centred else StreamBuilder.select
        stream = select(builder, flat.stream, rows.channels[0])
        square = _mean_square(builder, stream)
        result = builder.stream(CoreOp((square, stream), Normalize(epsilon)), stream.grid, width)
        return StreamView(result, rows.result(width, axis))

    normal = builder.placed(attempt, flat)
    normal = StreamView(normal.stream, normal.index.unflatten(-1, shape))
    if gain is None and bias is None:
        return normal
    return by_constants(builder, normal, 1.0 if gain is None else gain, 0.0 if bias is None else bias)


def group_norm(builder: StreamBuilder, x: Value, groups: int, gain: Any, bias: Any, *options: Any) -> Value:
    """Norm of groups of channels, dimension 1, over all positions of a sample, or over a single one."""
    view, epsilon = builder.view(x, 1), options[0]

    def attempt(view: StreamView) -> StreamView:
        rows = group(view, 1, builder.samples)
        if len(rows.channels) > 1:
            raise NoRuleError("a norm of parts of the channels has no closed form")
        stream = builder.select(view.stream, rows.channels[0])
        width = stream.channels
        sites = rows.rows.view(len(rows.rows), -1)
        if sites.shape[1] == 1:
            part = torch.eye(width // groups, dtype=torch.float64) - groups / width
            stream = builder.mixed([(stream, torch.block_diag(*[part] * groups))])
            core: Core = HeadNorm(width // groups, epsilon)
        elif sites.shape == (builder.samples, stream.positions):
            builder.fixed_lengths = True
            core = GroupNorm(groups, epsilon)
        else:
            raise NoRuleError("a norm over some of the positions has no closed form")
        return StreamView(builder.stream(CoreOp((stream,), core), stream.grid, width), rows.result(width, 1))

    normal = builder.placed(attempt, view, flat=False)
    shape = [1, -1] + [1] * (view.index.ndim - 2)
    scale, shift = (
        default if value is None else constant(value).view(shape)
        for value, default in ((gain, 1.0), (bias, 0.0))
    )
    return by_constants(builder, normal, scale, shift)


def instance_norm(builder: StreamBuilder, x: Value, gain: Any, bias: Any, mean: Any, *options: Any) -> Value:
    """Norm of every channel over all positions, or, with stored statistics, a scale and a shift."""
    variance, by_sample, momentum, epsilon, _ = options
    if not by_sample:
        return batch_norm(builder, x, gain, bias, mean, variance, momentum, epsilon)[0]
    return group_norm(builder, x, builder.view(x, 1).shape[1], gain, bias, epsilon)


def _select_centred(builder: StreamBuilder, stream: Stream, channels: Tensor) -> Stream:
    """Channels of a stream less their mean."""
    read = selection(channels, stream.channels)
    return builder.mixed([(stream, read - read.mean(0, keepdim=True))])


def variance(
    builder: StreamBuilder, x: Value, dim: Any, correction: float | None, keepdim: bool = False
) -> Value:
    """x.var(-1, unbiased=False): the mean square of the centred channels."""
    view = builder.view(x)
    axes = [dim] if isinstance(dim, int) else dim
    if axes is None or len(axes) != 1 or correction not in (0, False):
        raise NoRuleError("this variance has no closed form")
    rows = group(view, axes[0], builder.samples)
    if len(rows.channels) > 1:
        raise NoRuleError("a variance of parts of the channels has no closed form")
    square = _mean_square(builder, _select_centred(builder, view.stream, rows.channels[0]))
    return StreamView(square, rows.rows.unsqueeze(axes[0]) if keepdim else rows.rows)


def reduced(
    builder: StreamBuilder, x: Value, dim: Any = None, keepdim: bool = False, *options: Any, is_mean: bool
) -> Value:
    """Mean or sum: over channels a row of ones; over all positions a mean."""
    if dim is None:
        raise NoRuleError("a mean over everything mixes samples")
    view = builder.view(x)
    ndim = view.index.ndim
    axes = sorted(int(axis) % ndim for axis in (dim if isinstance(dim, (list, tuple)) else [dim]))
    remaining = [k for k in range(ndim) if k not in axes]
    moved = StreamView(view.stream, view.index.permute(*remaining, *axes).flatten(len(remaining)))
    length = moved.shape[-1]
    try:
        ones = torch.ones(1, length, dtype=torch.float64) / (length if is_mean else 1)
        square = _mean_of_squares(builder, moved) if is_mean else None
        result = square or apply_matrix(builder, moved, ones, None, moved.index.ndim - 1)
        if result.stream.inputs[0].grid != view.stream.grid:
            raise NoRuleError("positions were flattened")
        result = StreamView(result.stream, result.index[..., 0])
    except NoRuleError:
        result = _mean_over_positions(builder, moved)
        if not is_mean:
            builder.fixed_lengths = True
            result = by_constants(builder, result, float(length), 0.0)
    index = result.index
    for axis in axes if keepdim else ():
        index = index.unsqueeze(axis)
    return StreamView(result.stream, index)


def _mean_over_positions(builder: StreamBuilder, x: StreamView) -> StreamView:
    """Mean of x [..., L], which has all positions of one sample and channel along the last dimension."""
    stream, channels = x.stream, x.channels
    position, sample = x.sites % stream.positions, x.sites // stream.positions
    same = (sample == sample[..., :1]).all() and (channels == channels[..., :1]).all()
    every = x.shape[-1] == stream.positions
    positions = torch.arange(stream.positions)
    if not same or not every or not torch.equal(position.sort(-1).values, positions.expand(x.shape)):
        raise NoRuleError("a mean over some of the positions has no rule")
    average = builder.stream(Gathered((stream,), averaging_stencil(stream.grid), MEAN), (), stream.channels)
    return StreamView(average, sample[..., 0] * stream.channels + channels[..., 0])


def averaging_stencil(grid: Grid) -> Stencil:
    """Stencil to one position, the mean of all."""
    whole = Stencil.adaptive(grid, (1,) * len(grid))
    return Stencil(grid, (), whole.index, whole.weight)


def _is_applied(stream: Stream, name: str) -> bool:
    """Whether a stream is a function of that name applied to another."""
    op: Any = stream.op
    return stream.is_core(Elementwise) and getattr(op.core.activation, "name", "") == name


def _mean_square(builder: StreamBuilder, stream: Stream) -> Stream:
    """Mean square of all channels, one channel: the variance of what is centred."""
    return builder.stream(CoreOp((stream,), Variance(stream.channels)), stream.grid, 1)


def _mean_of_squares(builder: StreamBuilder, x: StreamView) -> StreamView | None:
    """Mean of x [..., L] where it is the squares of all channels of a stream; else None."""
    if not _is_applied(x.stream, "square"):
        return None
    rows = group(x, x.index.ndim - 1, builder.samples)
    every = torch.arange(x.stream.channels)
    if len(rows.channels) != 1 or not torch.equal(rows.channels[0].sort().values, every):
        return None
    return StreamView(_mean_square(builder, x.stream.inputs[0]), rows.rows[..., None])


def norm_by_root(builder: StreamBuilder, x: StreamView, root: StreamView, name: str) -> StreamView | None:
    """x / √(v + ε), v a mean square, where ``root`` is the function ``name`` of v + ε; else None."""
    if not _is_applied(root.stream, name):
        return None
    square, epsilon = root.stream.inputs[0], 0.0
    if isinstance(square.op, Mixed) and len(square.inputs) == 1 and square.channels == 1:
        if square.op.weights[0].flatten().tolist() != [1]:
            return None
        epsilon, square = float(square.op.bias.item()), square.inputs[0]
    if not square.is_core(Variance) or epsilon <= 0:
        return None
    shape = torch.broadcast_shapes(x.shape, root.shape)
    aligned = align([x.expand(shape), root.expand(shape)], builder.samples)
    stream = builder.select(x.stream, aligned.channels[0])
    result = builder.stream(CoreOp((square, stream), Normalize(epsilon)), stream.grid, stream.channels)
    return StreamView(result, aligned.index)


RULES: dict[str, OpRule] = {
    "layer_norm": layer_norm, "native_layer_norm": lambda *arguments: (layer_norm(*arguments),),
    "group_norm": group_norm, "instance_norm": instance_norm,
    "rms_norm": rms_norm, "_fused_rms_norm": lambda *arguments: (rms_norm(*arguments),), "var": variance,
    "mean": partial(reduced, is_mean=True), "sum": partial(reduced, is_mean=False),
}  # fmt: skip
