"""Convolutions, pooling, padding and enlarging: channels in dimension 1, pixels after it."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from interbasis.models.traced.recognise import OpRule, StreamBuilder, constant, op_name
from interbasis.models.traced.rules.linear import apply_matrix, by_constants
from interbasis.models.traced.rules.norms import averaging_stencil
from interbasis.models.traced.streams import MEAN, Convolved, Gathered, MaxPooled, Stream
from interbasis.models.traced.values import NoRuleError, StreamView, Value, group
from interbasis.network.cores import Largest
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import kernel_taps
from interbasis.network.window import Grid, SlidingWindow

MAX_PROBED_PIXELS = 4096


def _pixels(builder: StreamBuilder, value: Value) -> Stream:
    """Stream of a tensor [n, c, grid…], its channels and pixels in order."""
    x, name = builder.view(value, 1), op_name(builder.node)
    if x.index.ndim != next((d for d in (1, 2, 3) if f"{d}d" in name), x.index.ndim - 2) + 2:
        raise NoRuleError("an image without samples has no rule")
    rows = group(x, 1, builder.samples)
    grid = tuple(x.shape[2:])
    order = torch.arange(builder.samples * prod(grid)).view(builder.samples, *grid)
    if len(rows.channels) != 1 or not torch.equal(rows.rows, order):
        raise NoRuleError("pixels lie in another order than in the stream")
    return builder.select(x.stream, rows.channels[0], grid)


def _image(builder: StreamBuilder, op: Convolved | Gathered | MaxPooled) -> StreamView:
    """A new stream as a tensor [n, c, grid…]."""
    grid, channels = op.stencil.target, len(op.taps) if isinstance(op, Convolved) else op.inputs[0].channels
    order = [0, *range(2, 2 + len(grid)), 1]
    return builder.arranged(builder.stream(op, grid, channels), order, [builder.samples, channels, *grid])


def _sizes(value: Any, dimensions: int) -> Grid:
    sizes = [int(size) for size in value] if isinstance(value, (list, tuple)) else [int(value)]
    return tuple(sizes * dimensions) if len(sizes) == 1 else tuple(sizes)


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
    stream = _pixels(builder, x)
    window = replace(SlidingWindow.from_arguments(kernel, stride, dilation, 0), padding=pads)
    op = Convolved((stream,), Stencil.sliding(stream.grid, window), kernel_taps(weight, groups))
    return _with_bias(builder, _image(builder, op), bias)


def transposed(builder: StreamBuilder, x: Value, weight: Any, bias: Any, *options: Any) -> Value:
    weight, bias = constant(weight).double(), constant(bias)
    dimensions, kernel, groups = weight.ndim - 2, tuple(weight.shape[2:]), options[3]
    stride, padding, extra, dilation = (_sizes(options[k], dimensions) for k in (0, 1, 2, 4))
    stream = _pixels(builder, x)
    window = SlidingWindow.from_arguments(kernel, stride, dilation, padding)
    kernels = torch.cat([part.transpose(0, 1) for part in weight.chunk(groups)])  # as a convolution has them
    op = Convolved((stream,), Stencil.transposed(stream.grid, window, extra), kernel_taps(kernels, groups))
    return _with_bias(builder, _image(builder, op), bias)


def general_convolution(builder: StreamBuilder, x: Value, weight: Any, bias: Any, *options: Any) -> Value:
    """aten.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    stride, padding, dilation, is_transposed, extra, groups = options
    if is_transposed:
        return transposed(builder, x, weight, bias, stride, padding, extra, groups, dilation)
    return convolution(builder, x, weight, bias, stride, padding, dilation, groups)


def _window(stream: Stream, kernel: Any, options: Sequence[Any], dilation: Any = 1) -> SlidingWindow:
    """SlidingWindow of stride, padding and ceil_mode."""
    stride, padding, ceil = options
    arguments = (_sizes(value, len(stream.grid)) for value in (kernel, stride or kernel, dilation, padding))
    size, steps, dilations, pads = arguments
    return replace(SlidingWindow.from_arguments(size, steps, dilations, pads), ceil=bool(ceil))


def max_pool(builder: StreamBuilder, x: Value, kernel: Any, *options: Any) -> Value:
    stride, padding, dilation, ceil = options
    stream = _pixels(builder, x)
    window = replace(_window(stream, kernel, (stride, padding, ceil), dilation), mode="inside")
    result = _largest(builder, stream, Stencil.sliding(stream.grid, window))
    return (result,) if "indices" in op_name(builder.node) else result


def _largest(builder: StreamBuilder, stream: Stream, stencil: Stencil) -> StreamView:
    return _image(builder, MaxPooled((stream,), Largest(stencil.taps), stencil))


def average_pool(builder: StreamBuilder, x: Value, kernel: Any, *options: Any) -> Value:
    *window_options, counts, divisor = options if len(options) == 5 else (*options, None)
    stream = _pixels(builder, x)
    window = _window(stream, kernel, window_options)
    stencil = Stencil.average(stream.grid, window, count_padding=bool(counts), divisor=divisor)
    return _image(builder, Gathered((stream,), stencil, f"averages over {'×'.join(map(str, window.kernel))}"))


def adaptive_average(builder: StreamBuilder, x: Value, size: Any) -> Value:
    stream = _pixels(builder, x)
    sizes = tuple(int(g if s is None else s) for s, g in zip(size, stream.grid, strict=True))
    if set(sizes) != {1}:
        return _image(builder, Gathered((stream,), Stencil.adaptive(stream.grid, sizes), "averages"))
    result = _image(builder, Gathered((stream,), averaging_stencil(stream.grid), MEAN))
    return StreamView(result.stream, result.index.view(*result.shape, *sizes))


def adaptive_maximum(builder: StreamBuilder, x: Value, size: Any) -> Value:
    stream = _pixels(builder, x)
    sizes = _sizes(size, len(stream.grid))
    return (_largest(builder, stream, Stencil.adaptive(stream.grid, sizes, maximum=True)),)


def nearest(builder: StreamBuilder, x: Value, *options: Any) -> Value:
    """Enlarged: every pixel reads the nearest one, as torch itself picks it."""
    stream = _pixels(builder, x)
    numbers = torch.arange(prod(stream.grid), dtype=torch.float64).view(1, 1, *stream.grid)
    target: Any = builder.node.target
    index = target(numbers, *constant(options)).long()
    grid, index = tuple(index.shape[2:]), index.flatten()[:, None, None]
    stencil = Stencil(stream.grid, grid, index, torch.ones(index.shape, dtype=torch.float64))
    return _image(builder, Gathered((stream,), stencil, "the nearest pixel"))


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
    return _image(builder, Gathered((stream,), stencil, "a map of the pixels"))


BY_DIMENSIONS: dict[str, OpRule] = {
    "conv{}d": convolution, "conv_transpose{}d": transposed, "max_pool{}d": max_pool,
    "max_pool{}d_with_indices": max_pool, "avg_pool{}d": average_pool, "upsample_nearest{}d": nearest,
    "adaptive_avg_pool{}d": adaptive_average, "_adaptive_avg_pool{}d": adaptive_average,
    "adaptive_max_pool{}d": adaptive_maximum, "reflection_pad{}d": linear_in_pixels,
    "replication_pad{}d": linear_in_pixels,
}  # fmt: skip
LINEAR_IN_PIXELS = (
    "upsample_bilinear2d", "upsample_linear1d", "upsample_bicubic2d", "upsample_trilinear3d",
    "constant_pad_nd", "pad",
)  # fmt: skip
RULES = {name.format(d): rule for name, rule in BY_DIMENSIONS.items() for d in (1, 2, 3)}
RULES |= {"convolution": general_convolution, **dict.fromkeys(LINEAR_IN_PIXELS, linear_in_pixels)}
