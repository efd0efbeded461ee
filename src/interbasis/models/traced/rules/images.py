"""Convolutions, pooling, padding and enlarging: channels in dimension 1, pixels after it."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from interbasis.models.traced.recognise import Rule, StreamBuilder, constant
from interbasis.models.traced.rules.linear import apply_matrix, by_constants
from interbasis.models.traced.rules.norms import averaging_stencil
from interbasis.models.traced.streams import MEAN, Convolved, Gathered, MaxPooled, Op, Stream
from interbasis.models.traced.values import NoRuleError, StreamView, Value, group
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import kernel_taps
from interbasis.network.window import Grid, SlidingWindow

MAX_PROBED_PIXELS = 4096


def _pixels(builder: StreamBuilder, value: Value, dimensions: int | None = None) -> Stream:
    """Stream of a tensor [n, c, grid…], its channels and pixels in order."""
    x = builder.view(value, 1)
    if dimensions is not None and x.index.ndim != dimensions + 2:
        raise NoRuleError("an image without samples has no rule")
    rows = group(x, 1, builder.samples)
    grid = tuple(x.shape[2:])
    order = torch.arange(builder.samples * prod(grid)).view(builder.samples, *grid)
    if len(rows.channels) != 1 or not torch.equal(rows.rows, order):
        raise NoRuleError("pixels lie in another order than in the stream")
    return builder.select(x.stream, rows.channels[0], grid)


def _image(builder: StreamBuilder, op: Op, grid: Grid, channels: int) -> StreamView:
    """A new stream as a tensor [n, c, grid…]."""
    order = [0, *range(2, 2 + len(grid)), 1]
    return builder.arranged(builder.stream(op, grid, channels), order, [builder.samples, channels, *grid])


def _sizes(value: Any, dimensions: int) -> Grid:
    sizes = [int(size) for size in value] if isinstance(value, (list, tuple)) else [int(value)]
    return tuple(sizes * dimensions) if len(sizes) == 1 else tuple(sizes)


def _dimensions(builder: StreamBuilder) -> int:
    return next(d for d in (1, 2, 3) if f"{d}d" in str(builder.node.target))


def _with_bias(builder: StreamBuilder, x: StreamView, bias: Tensor | None) -> StreamView:
    if bias is None:
        return x
    return by_constants(builder, x, 1.0, bias.view(1, -1, *[1] * (x.index.ndim - 2)))


def convolution(builder: StreamBuilder, x: Value, weight: Any, bias: Any, *options: Any) -> Value:
    stride, padding, dilation, groups = options
    weight, bias = constant(weight).double(), constant(bias)
    dimensions, kernel = weight.ndim - 2, tuple(weight.shape[2:])
    stride, dilation = _sizes(stride, dimensions), _sizes(dilation, dimensions)
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        pads = tuple((t // 2, t - t // 2) for t in total)
    else:
        pads = tuple((p, p) for p in _sizes(padding, dimensions))
    if prod(kernel) == 1 and set(stride) == {1} and not any(map(any, pads)):
        return apply_matrix(builder, builder.view(x, 1), kernel_taps(weight, groups)[:, 0], bias, 1)
    stream = _pixels(builder, x, dimensions)
    window = replace(SlidingWindow.from_arguments(kernel, stride, dilation, 0), padding=pads)
    stencil = Stencil.sliding(stream.grid, window)
    op = Convolved((stream,), stencil, kernel_taps(weight, groups))
    return _with_bias(builder, _image(builder, op, stencil.target, len(weight)), bias)


def transposed(builder: StreamBuilder, x: Value, weight: Any, bias: Any, *options: Any) -> Value:
    weight, bias = constant(weight).double(), constant(bias)
    dimensions, kernel, groups = weight.ndim - 2, tuple(weight.shape[2:]), options[3]
    stride, padding, extra, dilation = (_sizes(options[k], dimensions) for k in (0, 1, 2, 4))
    stream = _pixels(builder, x, dimensions)
    stencil = Stencil.transposed(
        stream.grid, SlidingWindow.from_arguments(kernel, stride, dilation, padding), extra
    )
    parts = [kernel_taps(part.transpose(0, 1)) for part in weight.chunk(groups)]
    taps = weight.new_zeros(sum(map(len, parts)), stencil.taps, stream.channels)
    row = column = 0
    for part in parts:
        taps[row : row + len(part), :, column : column + part.shape[2]] = part
        row, column = row + len(part), column + part.shape[2]
    result = _image(builder, Convolved((stream,), stencil, taps), stencil.target, len(taps))
    return _with_bias(builder, result, bias)


def general_convolution(builder: StreamBuilder, x: Value, weight: Any, bias: Any, *options: Any) -> Value:
    """aten.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    stride, padding, dilation, is_transposed, extra, groups = options
    if is_transposed:
        return transposed(builder, x, weight, bias, stride, padding, extra, groups, dilation)
    return convolution(builder, x, weight, bias, stride, padding, dilation, groups)


def _window(kernel: Any, options: Sequence[Any], dilation: Any, dimensions: int) -> SlidingWindow:
    """SlidingWindow of stride, padding and ceil_mode."""
    stride, padding, ceil = options
    size = _sizes(kernel, dimensions)
    strides = _sizes(stride, dimensions) if stride else size
    window = SlidingWindow.from_arguments(
        size, strides, _sizes(dilation, dimensions), _sizes(padding, dimensions)
    )
    return replace(window, ceil=bool(ceil))


def max_pool(builder: StreamBuilder, x: Value, kernel: Any, *options: Any) -> Value:
    stride, padding, dilation, ceil = options
    dimensions = _dimensions(builder)
    stream = _pixels(builder, x, dimensions)
    window = replace(_window(kernel, (stride, padding, ceil), dilation, dimensions), mode="inside")
    stencil = Stencil.sliding(stream.grid, window)
    result = _image(builder, MaxPooled((stream,), stencil), stencil.target, stream.channels)
    return (result,) if "indices" in str(builder.node.target) else result


def average_pool(builder: StreamBuilder, x: Value, kernel: Any, *options: Any) -> Value:
    *window_options, counts, divisor = options if len(options) == 5 else (*options, None)
    dimensions = _dimensions(builder)
    stream = _pixels(builder, x, dimensions)
    window = _window(kernel, window_options, 1, dimensions)
    stencil = Stencil.average(stream.grid, window, count_padding=bool(counts), divisor=divisor)
    op = Gathered((stream,), stencil, f"averages over {'×'.join(map(str, window.kernel))}")
    return _image(builder, op, stencil.target, stream.channels)


def adaptive_average(builder: StreamBuilder, x: Value, size: Any) -> Value:
    dimensions = _dimensions(builder)
    stream = _pixels(builder, x, dimensions)
    sizes = _sizes([s if s is not None else g for s, g in zip(size, stream.grid, strict=True)], dimensions)
    if set(sizes) == {1}:
        op = Gathered((stream,), averaging_stencil(stream.grid), MEAN)
        result = _image(builder, op, (), stream.channels)
        return StreamView(result.stream, result.index.view(*result.shape, *sizes))
    op = Gathered((stream,), Stencil.adaptive(stream.grid, sizes), "averages")
    return _image(builder, op, sizes, stream.channels)


def adaptive_maximum(builder: StreamBuilder, x: Value, size: Any) -> Value:
    dimensions = _dimensions(builder)
    stream = _pixels(builder, x, dimensions)
    stencil = Stencil.adaptive(stream.grid, _sizes(size, dimensions), maximum=True)
    return (_image(builder, MaxPooled((stream,), stencil), stencil.target, stream.channels),)


def nearest(builder: StreamBuilder, x: Value, *options: Any) -> Value:
    """Enlarged: every pixel reads the nearest one, as torch itself picks it."""
    stream = _pixels(builder, x)
    numbers = torch.arange(prod(stream.grid), dtype=torch.float64).view(1, 1, *stream.grid)
    target: Any = builder.node.target
    index = target(numbers, *constant(options)).long()
    grid, index = tuple(index.shape[2:]), index.flatten()[:, None, None]
    stencil = Stencil(stream.grid, grid, index, torch.ones(index.shape, dtype=torch.float64))
    return _image(builder, Gathered((stream,), stencil, "the nearest pixel"), grid, stream.channels)


def linear_in_pixels(builder: StreamBuilder, x: Value, *options: Any) -> Value:
    """Map that treats channels alike and is linear in the pixels: its matrix is its result on unit images."""
    stream = _pixels(builder, x)
    P = prod(stream.grid)
    if P > MAX_PROBED_PIXELS:
        raise NoRuleError("an image of this size is not probed for what is linear in its pixels")
    target: Any = builder.node.target
    unit = torch.eye(P, dtype=torch.float64).view(P, 1, *stream.grid)
    result = target(unit, *constant(options))  # [P, 1, grid…]
    if target(torch.zeros_like(unit), *options).any():
        raise NoRuleError("it adds a constant to pixels")
    grid, weights = tuple(result.shape[2:]), result.flatten(1).T  # [S, P]
    depth = int((weights != 0).sum(1).max())
    index = weights.abs().topk(max(depth, 1), dim=1).indices[:, None]
    stencil = Stencil(stream.grid, grid, index, weights.gather(1, index[:, 0])[:, None])
    return _image(builder, Gathered((stream,), stencil, "a map of the pixels"), grid, stream.channels)


RULES: dict[str, Rule] = {
    **{f"conv{d}d": convolution for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": transposed for d in (1, 2, 3)},
    **{f"max_pool{d}d": max_pool for d in (1, 2, 3)},
    **{f"max_pool{d}d_with_indices": max_pool for d in (1, 2, 3)},
    **{f"avg_pool{d}d": average_pool for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": adaptive_average for d in (1, 2, 3)},
    **{f"_adaptive_avg_pool{d}d": adaptive_average for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": adaptive_maximum for d in (1, 2, 3)},
    **{f"upsample_nearest{d}d": nearest for d in (1, 2, 3)},
    "convolution": general_convolution,
    **dict.fromkeys(
        ("upsample_bilinear2d", "upsample_linear1d", "upsample_bicubic2d", "reflection_pad1d",
         "reflection_pad2d", "replication_pad1d", "replication_pad2d", "constant_pad_nd", "pad",
         "upsample_trilinear3d"),
        linear_in_pixels,
    ),
}  # fmt: skip
