"""Linear maps, sums, scales, concatenation, means."""

from typing import Any

import torch
from torch import Tensor, fx

from interbasis.models.traced import wires
from interbasis.models.traced.recognise import Recogniser, known, shape_of
from interbasis.models.traced.rules import products
from interbasis.models.traced.streams import MEAN, Gathered, Mixed, Stream, selection
from interbasis.models.traced.values import Early, Keywords, Scores, Several, Value
from interbasis.models.traced.wires import MisplacedError, Wire
from interbasis.network.stencil import Stencil
from interbasis.network.window import Grid


def is_computed(value: Any) -> bool:
    return isinstance(value, (Wire, Early))


def mixed(
    made: Recogniser, parts: list[tuple[Stream, Tensor]], bias: Tensor, grid: Grid, of: bool = False
) -> Stream:
    """Σ W_i x_i + b."""
    streams, weights = tuple(s for s, _ in parts), tuple(w for _, w in parts)
    return made.stream(Mixed(streams, weights, bias, of), grid, len(bias))


def applied(made: Recogniser, x: Wire, weight: Tensor, bias: Tensor | None, axis: int) -> Wire:
    """W along one dimension, whose numbers are channels of one position."""

    def attempt(x: Wire) -> Wire:
        rows = wires.group(x, axis, made.samples)
        groups, width = len(rows.channels), x.stream.channels
        out = weight.shape[0]
        if groups == 1 and torch.equal(rows.channels[0], torch.arange(width)):
            matrix = weight
        else:
            matrix = torch.zeros(groups, out, width, dtype=torch.float64)
            index = rows.channels[:, None].expand(-1, out, -1)
            matrix.scatter_add_(2, index, weight.expand(groups, -1, -1))
            matrix = matrix.flatten(0, 1)
        shift = weight.new_zeros(out) if bias is None else bias
        stream = mixed(made, [(x.stream, matrix)], shift.repeat(groups), x.stream.grid, of=True)
        return Wire(stream, rows.result(out, axis))

    return made.placed(x, attempt)


def linear(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    x, weight, bias = made.wire(args[0], -1), known(args[1]), known(args[2]) if len(args) > 2 else None
    return applied(made, x, weight.double(), bias, x.where.ndim - 1)


def addmm(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    x = made.wire(args[1], -1)
    return applied(made, x, known(args[2]).double().T, known(args[0]), x.where.ndim - 1)


def matmul(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    first, second = args
    if isinstance(first, Scores) or (is_computed(first) and is_computed(second)):
        from interbasis.models.traced.rules.attention import product_of_computed

        return product_of_computed(made, first, second)
    if is_computed(first):
        weight, x = known(second), made.wire(first, -1)
        if weight.ndim == 2:
            return applied(made, x, weight.double().T, None, x.where.ndim - 1)
    elif is_computed(second):
        weight, x = known(first), made.wire(second)
        if weight.ndim == 2 and x.where.ndim >= 2:
            return applied(made, x, weight.double(), None, x.where.ndim - 2)
    raise MisplacedError("a product of these shapes has no rule")


def by_constants(made: Recogniser, x: Wire, scale: Tensor | float, shift: Tensor | float) -> Wire:
    """scale ∘ x + shift with constants of any shape, the same at every position."""
    parts = [torch.as_tensor(part, dtype=torch.float64) for part in (scale, shift)]
    shape = torch.broadcast_shapes(x.where.shape, *(part.shape for part in parts))

    def attempt(x: Wire) -> Wire:
        aligned = wires.align([x.expand(shape)], made.samples)
        k = len(aligned.channels[0])
        rows = [part.expand(shape).flatten()[aligned.order].view(-1, k) for part in parts]
        if any((row != row[:1]).any() for row in rows):
            raise MisplacedError("a constant differs between positions")
        matrix = selection(aligned.channels[0], x.stream.channels) * rows[0][0][:, None]
        return Wire(mixed(made, [(x.stream, matrix)], rows[1][0].clone(), x.stream.grid), aligned.where)

    return made.placed(x, attempt, flat=False)


def sum_of(made: Recogniser, first: Wire, second: Wire, sign: float) -> Wire:
    shape = torch.broadcast_shapes(first.where.shape, second.where.shape)
    pair = first.expand(shape), second.expand(shape)
    for attempt in (lambda w: w, made.picked, lambda w: made.flattened(w) or w):
        changed = [wire for wire in map(attempt, pair) if wire is not None]
        if len(changed) < len(pair):
            continue
        try:
            aligned = wires.align(changed, made.samples)
        except MisplacedError:
            continue
        weights = [selection(c, w.stream.channels) for c, w in zip(aligned.channels, changed, strict=True)]
        parts = [(changed[0].stream, weights[0]), (changed[1].stream, sign * weights[1])]
        bias = torch.zeros(len(weights[0]), dtype=torch.float64)
        return Wire(mixed(made, parts, bias, changed[0].stream.grid), aligned.where)
    raise MisplacedError("numbers of different positions are added")


def pair(made: Recogniser, first: Any, second: Any) -> tuple[Wire, Wire]:
    """Two values that depend on the input; one that is the prefix's gets the layout that fits the other."""
    if isinstance(first, Wire) and isinstance(second, Early):
        return first, _beside(made, second, first)
    if isinstance(second, Wire) and isinstance(first, Early):
        return _beside(made, first, second), second
    return made.wire(first), made.wire(second)


def _beside(made: Recogniser, early: Early, other: Wire) -> Wire:
    for axis in (-1, 1, 2):
        if -early.value.ndim <= axis < early.value.ndim:
            wire = made.wire(early, axis)
            shape = torch.broadcast_shapes(wire.where.shape, other.where.shape)
            try:
                wires.align([wire.expand(shape), other.expand(shape)], made.samples)
                return wire
            except MisplacedError:
                continue
    return made.wire(early)


def add(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords, sign: float = 1.0) -> Value:
    first, second = args[:2]
    sign = sign * float(known(kwargs.get("alpha", 1)))
    if isinstance(first, Scores) or isinstance(second, Scores):
        from interbasis.models.traced.rules.attention import masked

        return masked(first, known(second)) if isinstance(first, Scores) else masked(second, known(first))
    if is_computed(first) and is_computed(second):
        return sum_of(made, *pair(made, first, second), sign)
    if is_computed(first):
        return by_constants(made, made.wire(first), 1.0, sign * torch.as_tensor(known(second)))
    return by_constants(made, made.wire(second), sign, known(first))


def sub(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    return add(made, node, args, kwargs, -1.0)


def rsub(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    return add(made, node, [args[1], args[0]], kwargs, -1.0)


def neg(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    return by_constants(made, made.wire(args[0]), -1.0, 0.0)


def mul(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    first, second = args[:2]
    for scores, factor in ((first, second), (second, first)):
        if isinstance(scores, Scores):
            return _scaled(scores, float(known(factor)))
    if is_computed(first) and is_computed(second):
        return products.product(made, *pair(made, first, second))
    x, factor = (first, second) if is_computed(first) else (second, first)
    return by_constants(made, made.wire(x), known(factor), 0.0)


def div(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    first, second = args[:2]
    if kwargs.get("rounding_mode") is not None:
        raise MisplacedError("a rounded division has no rule")
    if isinstance(first, Scores):
        return _scaled(first, 1 / float(known(second)))
    if is_computed(second):
        if not is_computed(first):
            raise MisplacedError("a division by what is computed has no rule")
        return products.quotient(made, *pair(made, first, second))
    return by_constants(made, made.wire(first), 1 / torch.as_tensor(known(second), dtype=torch.float64), 0.0)


def _scaled(scores: Scores, factor: float) -> Scores:
    from dataclasses import replace

    if scores.softmax or scores.causal:
        raise MisplacedError("scores are scaled after they were masked")
    return replace(scores, scale=scores.scale * factor)


def batch_norm(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    """In evaluation mode a scale and a shift of every channel, dimension 1."""
    gain, bias, mean, variance = (known(arg) for arg in args[1:5])
    epsilon = float(known(args[6]))
    scale = (variance.double() + epsilon).rsqrt()
    scale = scale if gain is None else scale * gain
    shift = -mean * scale if bias is None else bias - mean * scale
    x = made.wire(args[0], 1)
    shape = [1, -1] + [1] * (x.where.ndim - 2)
    return Several((by_constants(made, x, scale.view(shape), shift.view(shape)),))


def copy(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    """All numbers of a tensor, or of a slice of it, replaced by others: what is written is what comes out."""
    if not isinstance(args[1], Wire):
        raise MisplacedError("numbers are replaced by constants")
    return args[1].expand(torch.Size(shape_of(args[0])))


def cat(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    return _joined(made, args[0], lambda parts: torch.cat(parts, *[known(a) for a in args[1:]]))


def stack(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    return _joined(made, args[0], lambda parts: torch.stack(parts, *[known(a) for a in args[1:]]))


def scattered(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    """A tensor with a slice of it replaced."""
    options, named = [known(arg) for arg in args[2:]], {name: known(arg) for name, arg in kwargs.items()}
    target: Any = node.target
    return _joined(made, args[:2], lambda parts: target(*parts, *options, **named))


def _joined(made: Recogniser, parts: Any, join: Any) -> Value:
    """Streams side by side as channels of one; where their entries go is decided by the indices."""
    found = [part for part in parts if isinstance(part, Wire)]
    if not all(map(is_computed, parts)) or not found:
        raise MisplacedError("constants are put beside what is computed")
    joined = [part if isinstance(part, Wire) else pair(made, part, found[0])[0] for part in parts]
    streams = list(dict.fromkeys(wire.stream for wire in joined))
    if len({stream.grid for stream in streams}) > 1:
        raise MisplacedError("values with different positions are put together")
    if len(streams) == 1:
        return Wire(streams[0], join([wire.where for wire in joined]))
    starts, total = {}, 0
    for stream in streams:
        starts[stream] = total
        total += stream.channels
    columns = [
        (s, selection(torch.arange(s.channels), s.channels).new_zeros(total, s.channels)) for s in streams
    ]
    for stream, matrix in columns:
        matrix[starts[stream] : starts[stream] + stream.channels] = torch.eye(stream.channels)
    whole = mixed(made, columns, torch.zeros(total, dtype=torch.float64), streams[0].grid)
    where = [wire.spots * total + starts[wire.stream] + wire.channels for wire in joined]
    return Wire(whole, join(where))


def mean(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    return _reduced(made, args, kwargs, is_mean=True)


def sum_(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords) -> Value:
    return _reduced(made, args, kwargs, is_mean=False)


def _reduced(made: Recogniser, args: list[Any], kwargs: Keywords, *, is_mean: bool) -> Value:
    """Over channels a row of ones; over all positions a mean."""
    if len(args) < 2 or known(args[1]) is None:
        raise MisplacedError("a mean over everything mixes samples")
    x = made.wire(args[0])
    ndim = x.where.ndim
    axes = sorted(int(a) % ndim for a in _as_list(known(args[1])))
    keep = bool(known(args[2])) if len(args) > 2 else bool(known(kwargs.get("keepdim", False)))
    rest = [k for k in range(ndim) if k not in axes]
    moved = Wire(x.stream, x.where.permute(*rest, *axes).flatten(len(rest)))
    length = moved.where.shape[-1]
    try:
        ones = torch.ones(1, length, dtype=torch.float64) / (length if is_mean else 1)
        mean_square = products.mean_square(made, moved) if is_mean else None
        result = mean_square or applied(made, moved, ones, None, moved.where.ndim - 1)
        where, stream = result.where[..., 0], result.stream
        if result.stream.made.inputs[0].grid != x.stream.grid:
            raise MisplacedError("positions were flattened")
    except MisplacedError:
        where, stream = _over_positions(made, moved)
        if not is_mean:
            made.fixed_lengths = True
            scaled = by_constants(made, Wire(stream, where), float(length), 0.0)
            where, stream = scaled.where, scaled.stream
    for axis in axes if keep else ():
        where = where.unsqueeze(axis)
    return Wire(stream, where)


def _over_positions(made: Recogniser, x: Wire) -> tuple[Tensor, Stream]:
    """x.where [..., L] with all positions of one sample and channel along the last dimension."""
    old = x.stream
    positions, sample = x.spots % old.positions, x.spots // old.positions
    same = (sample == sample[..., :1]).all() and (x.channels == x.channels[..., :1]).all()
    every = x.where.shape[-1] == old.positions
    if (
        not same
        or not every
        or not torch.equal(positions.sort(-1).values, torch.arange(old.positions).expand(x.where.shape))
    ):
        raise MisplacedError("a mean over some of the positions has no rule")
    stream = made.stream(Gathered((old,), average_of_all(old.grid), MEAN), (), old.channels)
    return sample[..., 0] * old.channels + x.channels[..., 0], stream


def average_of_all(grid: Grid) -> Stencil:
    """One position: the mean of all."""
    whole = Stencil.adaptive(grid, (1,) * len(grid))
    return Stencil(grid, (), whole.index, whole.weight)


def _as_list(value: Any) -> list[int]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


RULES = {
    "linear": linear, "addmm": addmm, "matmul": matmul, "mm": matmul, "bmm": matmul, "add": add, "sub": sub,
    "rsub": rsub, "neg": neg, "mul": mul, "div": div, "cat": cat, "stack": stack, "mean": mean, "sum": sum_,
    "copy": copy, "slice_scatter": scattered, "select_scatter": scattered,
    "_native_batch_norm_legit_no_training": batch_norm,
}  # fmt: skip
