"""Convolutions, pooling, padding and enlarging: channels in dimension 1, pixels after it."""

from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from interbasis.models.traced import wires
from interbasis.models.traced.recognise import Recogniser, known
from interbasis.models.traced.rules.linear import applied, average_of_all, by_constants
from interbasis.models.traced.streams import (
    MEAN,
    Convolved,
    Gathered,
    MaxPooled,
    Mixed,
    Op,
    Stream,
    selection,
)
from interbasis.models.traced.values import Keywords, Several, Value
from interbasis.models.traced.wires import MisplacedError, Wire
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import kernel_taps
from interbasis.network.window import Grid, SlidingWindow


def pixels(made: Recogniser, value: Value, dimensions: int) -> Stream:
    """The stream of a tensor [n, c, grid…], its channels and pixels in order."""
    x = made.wire(value, 1)
    if x.where.ndim != dimensions + 2:
        raise MisplacedError("an image without samples has no rule")
    rows = wires.group(x, 1, made.samples)
    grid = tuple(x.where.shape[2:])
    order = torch.arange(made.samples * prod(grid)).view(made.samples, *grid)
    if len(rows.channels) != 1 or not torch.equal(rows.rows, order):
        raise MisplacedError("pixels lie in another order than in the stream")
    stream, channels = x.stream, rows.channels[0]
    if stream.grid == grid and torch.equal(channels, torch.arange(stream.channels)):
        return stream
    matrix = selection(channels, stream.channels)
    return made.stream(Mixed((stream,), (matrix,), matrix.new_zeros(len(matrix))), grid, len(matrix))


def image(made: Recogniser, op: Op, grid: Grid, channels: int) -> Wire:
    """A new stream as a tensor [n, c, grid…]."""
    stream = made.stream(op, grid, channels)
    where = wires.whole(stream, made.samples).view(made.samples, *grid, channels)
    return Wire(stream, where.movedim(-1, 1))


def _sizes(value: Any, dimensions: int) -> Grid:
    sizes = [int(size) for size in value] if isinstance(value, (list, tuple)) else [int(value)]
    return tuple(sizes * dimensions) if len(sizes) == 1 else tuple(sizes)


def convolution(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    weight = known(args[1]).double()
    dimensions = weight.ndim - 2
    options = {k: known(arg) for k, arg in enumerate(args) if k > 2}
    bias = known(args[2]) if len(args) > 2 else None
    stride, dilation = (_sizes(options.get(k, 1), dimensions) for k in (3, 5))
    padding = options.get(4, 0)
    groups = int(options.get(6, 1))
    if isinstance(padding, str):
        total = [
            d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)
        ]
        pads = tuple((t // 2, t - t // 2) for t in total)
    else:
        pads = tuple((p, p) for p in _sizes(padding, dimensions))
    plain = prod(weight.shape[2:]) == 1 and set(stride) == {1} and not any(map(any, pads))
    if plain:
        matrix = kernel_taps(weight, groups)[:, 0]
        x = made.wire(args[0], 1)
        return applied(made, x, matrix, bias, 1)
    stream = pixels(made, args[0], dimensions)
    window = replace(SlidingWindow.from_arguments(tuple(weight.shape[2:]), stride, dilation, 0), padding=pads)
    stencil = Stencil.sliding(stream.grid, window)
    op = Convolved((stream,), stencil, kernel_taps(weight, groups))
    return _biased(made, image(made, op, stencil.target, len(weight)), bias)


def _biased(made: Recogniser, x: Wire, bias: Tensor | None) -> Wire:
    if bias is None:
        return x
    return by_constants(made, x, 1.0, bias.view(1, -1, *[1] * (x.where.ndim - 2)))


def transposed(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    weight = known(args[1]).double()
    dimensions = weight.ndim - 2
    options = {k: known(arg) for k, arg in enumerate(args) if k > 2}
    stride, padding, extra = (_sizes(options.get(k, d), dimensions) for k, d in ((3, 1), (4, 0), (5, 0)))
    dilation, groups = _sizes(options.get(7, 1), dimensions), int(options.get(6, 1))
    stream = pixels(made, args[0], dimensions)
    window = SlidingWindow.from_arguments(tuple(weight.shape[2:]), stride, dilation, padding)
    stencil = Stencil.transposed(stream.grid, window, extra)
    parts = [kernel_taps(part.transpose(0, 1)) for part in weight.chunk(groups)]
    taps = weight.new_zeros(sum(map(len, parts)), stencil.taps, stream.channels)
    row = column = 0
    for part in parts:
        taps[row : row + len(part), :, column : column + part.shape[2]] = part
        row, column = row + len(part), column + part.shape[2]
    result = image(made, Convolved((stream,), stencil, taps), stencil.target, len(taps))
    return _biased(made, result, known(args[2]) if len(args) > 2 else None)


def general_convolution(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    """aten.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    x, weight, bias, stride, padding, dilation, is_transposed, extra, groups = args
    if known(is_transposed):
        return transposed(made, node, [x, weight, bias, stride, padding, extra, groups, dilation], {})
    return convolution(made, node, [x, weight, bias, stride, padding, dilation, groups], {})


def _window(args: list[Any], dimensions: int, *, dilates: bool) -> SlidingWindow:
    options = [known(arg) for arg in args[1:]]
    kernel = _sizes(options[0], dimensions)
    stride = _sizes(options[1], dimensions) if len(options) > 1 and options[1] else kernel
    padding = _sizes(options[2], dimensions) if len(options) > 2 else (0,) * dimensions
    dilation = _sizes(options[3], dimensions) if dilates and len(options) > 3 else (1,) * dimensions
    place = 4 if dilates else 3
    window = SlidingWindow.from_arguments(kernel, stride, dilation, padding)
    return replace(window, ceil=bool(options[place]) if len(options) > place else False)


def max_pool(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    dimensions = _dimensions(node)
    stream = pixels(made, args[0], dimensions)
    window = replace(_window(args, dimensions, dilates=True), mode="inside")
    stencil = Stencil.sliding(stream.grid, window)
    result = image(made, MaxPooled((stream,), stencil), stencil.target, stream.channels)
    return Several((result,)) if "indices" in str(node.target) else result


def average_pool(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    dimensions = _dimensions(node)
    stream = pixels(made, args[0], dimensions)
    window = _window(args, dimensions, dilates=False)
    counts = bool(known(args[5])) if len(args) > 5 else True
    divisor = known(args[6]) if len(args) > 6 else None
    stencil = Stencil.average(stream.grid, window, count_padding=counts, divisor=divisor)
    op = Gathered((stream,), stencil, f"averages over {'×'.join(map(str, window.kernel))}")
    return image(made, op, stencil.target, stream.channels)


def adaptive_average(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    dimensions = _dimensions(node)
    stream = pixels(made, args[0], dimensions)
    given = known(args[1])
    sizes = _sizes([s if s is not None else g for s, g in zip(given, stream.grid, strict=True)], dimensions)
    if set(sizes) == {1}:
        op = Gathered((stream,), average_of_all(stream.grid), MEAN)
        result = image(made, op, (), stream.channels)
        return Wire(result.stream, result.where.view(*result.where.shape, *sizes))
    stencil = Stencil.adaptive(stream.grid, sizes)
    return image(made, Gathered((stream,), stencil, "averages"), sizes, stream.channels)


def adaptive_maximum(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    dimensions = _dimensions(node)
    stream = pixels(made, args[0], dimensions)
    stencil = Stencil.adaptive(stream.grid, _sizes(known(args[1]), dimensions), maximum=True)
    result = image(made, MaxPooled((stream,), stencil), stencil.target, stream.channels)
    return Several((result,))


def _dimensions(node: fx.Node) -> int:
    return next(d for d in (1, 2, 3) if f"{d}d" in str(node.target))


def nearest(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    """Enlarged: every pixel reads the nearest one, as torch itself picks it."""
    x = made.wire(args[0], 1)
    dimensions = x.where.ndim - 2
    stream = pixels(made, args[0], dimensions)
    numbers = torch.arange(prod(stream.grid), dtype=torch.float64).view(1, 1, *stream.grid)
    target: Any = node.target
    index = target(
        numbers, *(known(arg) for arg in args[1:]), **{k: known(v) for k, v in kwargs.items()}
    ).long()
    grid = tuple(index.shape[2:])
    index = index.flatten()[:, None, None]
    stencil = Stencil(stream.grid, grid, index, torch.ones(index.shape, dtype=torch.float64))
    return image(made, Gathered((stream,), stencil, "the nearest pixel"), grid, stream.channels)


def linear_in_pixels(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    """Any map that treats channels alike and is linear in the pixels: its matrix is what it makes of
    unit images."""
    x = made.wire(args[0], 1)
    stream = pixels(made, args[0], x.where.ndim - 2)
    P = prod(stream.grid)
    if P > MAX_PROBED_PIXELS:
        raise MisplacedError("an image of this size is not probed for what is linear in its pixels")
    target: Any = node.target
    unit = torch.eye(P, dtype=torch.float64).view(P, 1, *stream.grid)
    rest, named = [known(arg) for arg in args[1:]], {k: known(v) for k, v in kwargs.items()}
    result = target(unit, *rest, **named)  # [P, 1, grid…]
    if target(torch.zeros_like(unit), *rest, **named).any():
        raise MisplacedError("it adds a constant to pixels")
    grid, weights = tuple(result.shape[2:]), result.flatten(1).T  # [S, P]
    depth = int((weights != 0).sum(1).max())
    index = weights.abs().topk(max(depth, 1), dim=1).indices[:, None]
    stencil = Stencil(stream.grid, grid, index, weights.gather(1, index[:, 0])[:, None])
    return image(made, Gathered((stream,), stencil, "a map of the pixels"), grid, stream.channels)


MAX_PROBED_PIXELS = 4096

RULES = {
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
