"""Products of two computed values: gates, and norms that are written out."""

import torch
from torch import nn

from interbasis.models.traced import wires
from interbasis.models.traced.recognise import Recogniser
from interbasis.models.traced.streams import Applied, Divided, MeanSquare, Mixed, Product, Stream, selection
from interbasis.models.traced.wires import MisplacedError, Wire


def product(made: Recogniser, first: Wire, second: Wire) -> Wire:
    """act(g) ∘ w, or x / √(v + ε) where one of the two is that root."""
    if first.stream is second.stream and torch.equal(first.where, second.where):
        from interbasis.models.traced.rules.pointwise import square

        return square(made, first)
    for x, other in ((first, second), (second, first)):
        norm = _root(other.stream, "rsqrt")
        if norm is not None:
            return divided(made, x, other, *norm)
    return _gated(made, first, second)


def _gated(made: Recogniser, first: Wire, second: Wire) -> Wire:
    gate, other = (first, second) if isinstance(first.stream.made, Applied) else (second, first)
    shape = torch.broadcast_shapes(gate.where.shape, other.where.shape)
    gate, other = gate.expand(shape), other.expand(shape)
    aligned = wires.align([gate, other], made.samples)
    whole = gate.stream
    activation: nn.Module = nn.Identity()
    if isinstance(whole.made, Applied) and not any(whole.made.activation.parameters()):
        activation, whole = whole.made.activation, whole.inputs[0]
    parts = []
    for stream, channels in zip((whole, other.stream), aligned.channels, strict=True):
        if torch.equal(channels, torch.arange(stream.channels)):
            parts.append(stream)
            continue
        matrix = selection(channels, stream.channels)
        bias = torch.zeros(len(matrix), dtype=torch.float64)
        parts.append(made.stream(Mixed((stream,), (matrix,), bias), stream.grid, len(matrix)))
    k = len(aligned.channels[0])
    return Wire(made.stream(Product(tuple(parts), activation), whole.grid, k), aligned.where)


def quotient(made: Recogniser, x: Wire, other: Wire) -> Wire:
    norm = _root(other.stream, "sqrt")
    if norm is None:
        raise MisplacedError("a division by what is computed has no rule")
    return divided(made, x, other, *norm)


def divided(made: Recogniser, x: Wire, root: Wire, square: Stream, epsilon: float) -> Wire:
    """x / √(v + ε) with v the mean square of a stream, one for every position."""
    shape = torch.broadcast_shapes(x.where.shape, root.where.shape)
    x, root = x.expand(shape), root.expand(shape)
    aligned = wires.align([x, root], made.samples)
    width = x.stream.channels
    stream = x.stream
    if not torch.equal(aligned.channels[0], torch.arange(width)):
        matrix = selection(aligned.channels[0], width)
        bias = torch.zeros(len(matrix), dtype=torch.float64)
        stream = made.stream(Mixed((stream,), (matrix,), bias), stream.grid, len(matrix))
    result = made.stream(Divided((square, stream), epsilon), stream.grid, stream.channels)
    return Wire(result, aligned.where)


def _root(stream: Stream, name: str) -> tuple[Stream, float] | None:
    """The mean square and ε where a stream is a root of their sum."""
    if not isinstance(stream.made, Applied) or getattr(stream.made.activation, "name", "") != name:
        return None
    inner, epsilon = stream.inputs[0], 0.0
    if isinstance(inner.made, Mixed) and len(inner.inputs) == 1 and inner.channels == 1:
        if float(inner.made.weights[0].item() if inner.made.weights[0].numel() == 1 else 0) != 1:
            return None
        epsilon, inner = float(inner.made.bias.item()), inner.inputs[0]
    return (inner, epsilon) if isinstance(inner.made, MeanSquare) and epsilon > 0 else None


def mean_square(made: Recogniser, x: Wire) -> Wire | None:
    """Of x [..., L] where it is the squares of all channels of a stream; else None."""
    stream = x.stream
    if not isinstance(stream.made, Applied) or getattr(stream.made.activation, "name", "") != "square":
        return None
    rows = wires.group(x, x.where.ndim - 1, made.samples)
    if len(rows.channels) != 1 or not torch.equal(
        rows.channels[0].sort().values, torch.arange(stream.channels)
    ):
        return None
    result = made.stream(MeanSquare((stream.inputs[0],)), stream.grid, 1)
    return Wire(result, rows.rows[..., None])
