"""Operations without a closed form: run as they are, on streams laid out as they were traced."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from interbasis.base.errors import InterbasisError
from interbasis.models.traced import wires
from interbasis.models.traced.recognise import Recogniser, default_axis, op_name
from interbasis.models.traced.streams import Foreign, Stream
from interbasis.models.traced.trace import Traced, place
from interbasis.models.traced.values import Early, Integers, Keywords, Known, Scores, Several, Value
from interbasis.models.traced.wires import MisplacedError, Wire


def _replaced(tensor: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(tensor).expand_as(tensor)


def _slice_replaced(
    tensor: Tensor, source: Tensor, dim: int = 0, start: int | None = 0, end: int | None = None, step: int = 1
) -> Tensor:
    end = tensor.shape[dim] if end is None else min(end, tensor.shape[dim])
    return torch.slice_scatter(tensor, source, dim, start, end, step)


DIFFERENTIABLE = {"copy": _replaced, "slice_scatter": _slice_replaced}
"""The same with a derivative by batches, for operations of which autograd knows none as torch.export writes
them: a copy, and a slice to the largest number there is."""
BY_POSITION = ("softmax", "_softmax", "log_softmax", "_log_softmax")
"""Functions along one dimension; where that is the channels', every position is treated by itself."""


@dataclass(frozen=True)
class Layout:
    """How a traced tensor is made from [samples, numbers of one sample]."""

    index: Tensor  # [numbers of the tensor that belong to one sample]
    before: tuple[int, ...]
    """Dimensions before the samples'."""
    after: tuple[int, ...]
    merged: tuple[int, int] | None
    """Dimensions that are merged in the tensor (first, last), where the samples are part of one."""

    def lay_out(self, stream: Tensor) -> Tensor:  # [n, P, c] -> the traced shape, for n samples
        numbers = stream.flatten(1)[:, self.index]  # [n, numbers]
        tensor = (
            numbers.unflatten(1, (*self.before, *self.after)) if self.before or self.after else numbers[:, 0]
        )
        tensor = tensor.movedim(0, len(self.before))
        return tensor if self.merged is None else tensor.flatten(*self.merged)

    @classmethod
    def of(cls, wire: Wire, samples: int) -> "Layout":
        """Found from where the numbers lie, with the samples in one dimension or merged into one."""
        shape, per_sample = wire.where.shape, wire.stream.positions * wire.stream.channels
        for axis, size in enumerate(shape):
            if size % samples:
                continue
            for split, at in (((samples, size // samples), 0), ((size // samples, samples), 1)):
                where = wire.where.unflatten(axis, split)
                alone = size == samples
                here = axis + at
                moved = where.movedim(here, 0).flatten(1)  # [samples, numbers]
                shift = torch.arange(samples)[:, None] * per_sample
                if not torch.equal(moved - shift, moved[:1].expand_as(moved)):
                    continue
                dims = list(where.shape)
                before, after = tuple(dims[:here]), tuple(dims[here + 1 :])
                if alone:
                    before, after = tuple(shape[:axis]), tuple(shape[axis + 1 :])
                merged = None if alone else (axis, axis + 1)
                return cls(moved[0], before, after, merged)
        raise MisplacedError("samples of the batch are mixed")


def foreign(made: Recogniser, node: fx.Node, args: list[Any], kwargs: Keywords, reason: str) -> Value:
    """A core that is differentiated automatically; ``reason`` says why it has no closed form."""
    name = op_name(node)
    if any(isinstance(part, Scores) for part in _flat((args, kwargs))):
        raise InterbasisError(
            f"scores of attention are used {place(node)} in a way that is not supported ({reason}); expected "
            "softmax(q kᵀ · scale + mask) v with a mask that is empty or causal, or "
            "scaled_dot_product_attention"
        )
    args, kwargs = _with_wires(made, (args, kwargs))
    found: dict[Stream, None] = {}
    try:
        layouts = {
            id(part): Layout.of(part, made.samples)
            for part in _flat((args, kwargs))
            if isinstance(part, Wire)
        }
    except MisplacedError as mixed:
        raise InterbasisError(
            f"{name} {place(node)} mixes the samples of the batch; expected a module that treats every "
            "sample by itself"
        ) from mixed
    for part in _flat((args, kwargs)):
        if isinstance(part, Wire):
            found.setdefault(part.stream)
        elif isinstance(part, Integers):
            found |= dict.fromkeys(part.streams)
        elif isinstance(part, Early):
            raise InterbasisError(
                f"{name} {place(node)} combines computed numbers with whole numbers of the input "
                f"({reason}), which is "
                "not supported; expected inputs that are read once, before the first layer"
            )
    made.fixed_lengths = True
    streams = tuple(found)
    function = _Function(made.traced, node, args, kwargs, layouts, streams)
    zero = [torch.zeros(made.samples, s.positions, s.channels, dtype=torch.float64) for s in streams]
    try:
        results = function.raw(zero)
    except Exception as error:  # somebody else's code
        raise InterbasisError(
            f"{name} {place(node)} could not be run by itself ({str(error).splitlines()[0]}); {reason}"
        ) from error
    by_position = _treats_positions_alone(made, name, args)
    if isinstance(results, Tensor):
        return _result(made, node, results, function, by_position)
    return Several(
        tuple(
            _result(made, node, part, function.part(number), by_position)
            if isinstance(part, Tensor)
            else Known(part)
            for number, part in enumerate(results)
        )
    )


def _result(
    made: Recogniser, node: fx.Node, result: Tensor, function: "_Function", by_position: bool
) -> Value:
    """The stream that an operation puts out, with its samples, positions and channels told apart."""
    streams = function.streams
    if not result.is_floating_point():
        return Integers(streams, function, tuple(result.shape))
    own = [k for k, size in enumerate(result.shape) if size == made.samples]
    if not own:
        raise InterbasisError(
            f"{op_name(node)} {place(node)} mixes the samples of the batch; expected a module that treats "
            "every sample by itself"
        )
    axis = default_axis(result.ndim) % result.ndim
    if axis == own[0]:
        axis = (axis + 1) % result.ndim
    rest = [k for k in range(result.ndim) if k not in (own[0], axis)] if result.ndim > 1 else []
    grid = tuple(result.shape[k] for k in rest)
    if all(size == 1 for size in grid):
        grid = ()
    channels = result.shape[axis] if result.ndim > 1 else 1
    order = [own[0], *rest, *([axis] if result.ndim > 1 else [])]

    widths = [stream.channels for stream in streams]
    positions = [stream.positions for stream in streams]

    def once(together: Tensor) -> Tensor:  # [n, numbers of all streams]
        parts = together.split([p * c for p, c in zip(positions, widths, strict=True)], dim=1)
        values = [part.unflatten(1, (-1, c)) for part, c in zip(parts, widths, strict=True)]
        return function(values).permute(*order).reshape(len(together), -1, channels)

    def run(values: Sequence[Tensor]) -> Tensor:
        return made.traced.in_groups(once, torch.cat([value.flatten(1) for value in values], dim=1))

    what = f"{op_name(node)} {place(node)}"
    stream = made.stream(Foreign(streams, run, what, not by_position), grid, channels)
    where = wires.whole(stream, made.samples).view([result.shape[k] for k in order])
    return Wire(stream, where.permute(*[order.index(k) for k in range(result.ndim)]))


class _Function:
    """The operation on streams of any number of samples."""

    def __init__(
        self,
        traced: Traced,
        node: fx.Node,
        args: Any,
        kwargs: Any,
        layouts: dict[int, Layout],
        streams: tuple[Stream, ...],
    ):
        self.traced, self.node = traced, node
        self.args, self.kwargs, self.layouts, self.streams = args, kwargs, layouts, streams
        self.number: int | None = None

    def part(self, number: int) -> "_Function":
        """The same, for one of several tensors that come out."""
        other = _Function(self.traced, self.node, self.args, self.kwargs, self.layouts, self.streams)
        other.number = number
        return other

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        result = self.raw(values)
        return result if self.number is None else result[self.number]

    def raw(self, values: Sequence[Tensor]) -> Any:
        known = dict(zip(self.streams, values, strict=True))
        samples, like = len(values[0]), values[0]

        def concrete(part: Any) -> Any:
            if isinstance(part, Wire):
                return self.layouts[id(part)].lay_out(known[part.stream])
            if isinstance(part, Integers):
                return part.function([known[stream] for stream in part.streams])
            if isinstance(part, Known):
                value = part.value if part.sized is None else resized(self.traced, part.sized, samples)
                return value.to(like) if isinstance(value, Tensor) and value.is_floating_point() else value
            if isinstance(part, Several):
                return tuple(map(concrete, part.parts))
            if isinstance(part, dict):
                return {name: concrete(value) for name, value in part.items()}
            return [*map(concrete, part)] if isinstance(part, (tuple, list)) else part

        target: Any = DIFFERENTIABLE.get(op_name(self.node), self.node.target)
        return target(*concrete(self.args), **concrete(self.kwargs))


def resized(traced: Traced, node: fx.Node, samples: int) -> Any:
    """A value that depends on shapes alone, for another number of samples."""
    values: dict[fx.Node, Any] = {}

    def value(node: fx.Node) -> Any:
        if node in values:
            return values[node]
        if node is traced.input:
            shape = (samples, *traced.example.shape[1:])
            result: Any = torch.empty(shape, dtype=traced.example.dtype, device="meta")
        elif node.op == "placeholder":
            result = traced.constants[node.name]
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
            result = node.target(*args, **kwargs)  # type: ignore[operator]
        values[node] = result
        return result

    return value(node)


def _treats_positions_alone(made: Recogniser, name: str, args: Any) -> bool:
    if name not in BY_POSITION or not isinstance(args[0], Wire):
        return False
    axis = args[1].value if isinstance(args[1], Known) else args[1]
    try:
        rows = wires.group(args[0], int(axis), made.samples)
        return len(rows.channels) == 1
    except MisplacedError:
        return False


def _with_wires(made: Recogniser, arguments: Any) -> Any:
    """Real numbers that are the prefix's get streams."""
    if isinstance(arguments, Early) and arguments.value.is_floating_point():
        return made.wire(arguments)
    if isinstance(arguments, Several):
        return Several(tuple(_with_wires(made, part) for part in arguments.parts))
    if isinstance(arguments, dict):
        return {name: _with_wires(made, value) for name, value in arguments.items()}
    if isinstance(arguments, (tuple, list)):
        return [_with_wires(made, part) for part in arguments]
    return arguments


def _flat(arguments: Any) -> list[Any]:
    if isinstance(arguments, Several):
        return _flat(arguments.parts)
    if isinstance(arguments, dict):
        return _flat(list(arguments.values()))
    if isinstance(arguments, (tuple, list)):
        return [leaf for part in arguments for leaf in _flat(part)]
    return [arguments]
