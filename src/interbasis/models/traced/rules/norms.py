"""Layer norms and RMS norms: the mean square of a stream, the division by its root, gain and bias."""

from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from interbasis.models.traced import wires
from interbasis.models.traced.recognise import Recogniser, known
from interbasis.models.traced.rules.linear import by_constants
from interbasis.models.traced.streams import Divided, MeanSquare, Mixed, selection
from interbasis.models.traced.values import Keywords, Several, Value
from interbasis.models.traced.wires import MisplacedError, Wire


def layer_norm(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    gain, bias, epsilon = (known(args[k]) if len(args) > k else None for k in (2, 3, 4))
    x = made.wire(args[0], -1)
    return normed(
        made, x, list(known(args[1])), 1e-5 if epsilon is None else epsilon, (gain, bias), centred=True
    )


def native_layer_norm(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    return Several((layer_norm(made, node, args, kwargs),))


def rms_norm(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    gain, epsilon = (known(args[k]) if len(args) > k else None for k in (2, 3))
    epsilon = torch.finfo(torch.float64).eps if epsilon is None else epsilon
    return normed(made, made.wire(args[0], -1), list(known(args[1])), epsilon, (gain, None), centred=False)


def fused_rms_norm(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    return Several((rms_norm(made, node, args, kwargs),))


def normed(
    made: Recogniser,
    x: Wire,
    shape: list[int],
    epsilon: float,
    affine: tuple[Tensor | None, Tensor | None],
    *,
    centred: bool,
) -> Wire:
    """Over the last dimensions, which must be all channels of one position."""
    flat = Wire(x.stream, x.where.flatten(-len(shape)))

    def attempt(flat: Wire) -> Wire:
        rows = wires.group(flat, flat.where.ndim - 1, made.samples)
        if len(rows.channels) > 1:
            raise MisplacedError("a norm of parts of the channels has no closed form")
        width = prod(shape)
        read = selection(rows.channels[0], flat.stream.channels)
        if centred:
            read = read - read.mean(0, keepdim=True)
        grid = flat.stream.grid
        stream = flat.stream
        if centred or not torch.equal(rows.channels[0], torch.arange(flat.stream.channels)):
            stream = made.stream(Mixed((stream,), (read,), read.new_zeros(width)), grid, width)
        square = made.stream(MeanSquare((stream,)), grid, 1)
        result = made.stream(Divided((square, stream), epsilon), grid, width)
        return Wire(result, rows.result(width, flat.where.ndim - 1))

    normal = made.placed(flat, attempt)
    normal = Wire(normal.stream, normal.where.unflatten(-1, shape))
    gain, bias = affine
    if gain is None and bias is None:
        return normal
    return by_constants(made, normal, 1.0 if gain is None else gain, 0.0 if bias is None else bias)


def variance(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    """x.var(-1, unbiased=False): the mean square of the centred channels."""
    x = made.wire(args[0])
    axes: Any = known(args[1] if len(args) > 1 else kwargs.get("dim"))
    correction = known(kwargs.get("correction", args[2] if len(args) > 2 else 1))
    axes = [axes] if isinstance(axes, int) else axes
    if axes is None or len(axes) != 1 or correction not in (0, False):
        raise MisplacedError("this variance has no closed form")
    keep = bool(known(kwargs.get("keepdim", args[3] if len(args) > 3 else False)))
    rows = wires.group(x, axes[0], made.samples)
    if len(rows.channels) > 1:
        raise MisplacedError("a variance of parts of the channels has no closed form")
    read = selection(rows.channels[0], x.stream.channels)
    read = read - read.mean(0, keepdim=True)
    centred = made.stream(Mixed((x.stream,), (read,), read.new_zeros(len(read))), x.stream.grid, len(read))
    square = made.stream(MeanSquare((centred,)), x.stream.grid, 1)
    return Wire(square, rows.rows.unsqueeze(axes[0]) if keep else rows.rows)


RULES = {
    "layer_norm": layer_norm, "native_layer_norm": native_layer_norm, "rms_norm": rms_norm,
    "_fused_rms_norm": fused_rms_norm, "var": variance,
}  # fmt: skip
