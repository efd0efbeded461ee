"""Operations without a closed form: run as they are, on streams laid out as they were traced."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from interbasis.base.errors import Explained, InterbasisError
from interbasis.models.traced import values
from interbasis.models.traced.recognise import StreamBuilder, default_axis, op_name
from interbasis.models.traced.streams import Foreign, Stream
from interbasis.models.traced.trace import TracedModule, location
from interbasis.models.traced.values import Constant, Integers, Keywords, NoRuleError, StreamView, Value


def _copy(tensor: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(tensor).expand_as(tensor)


def _slice_scatter(
    tensor: Tensor, source: Tensor, dim: int = 0, start: int | None = 0, end: int | None = None, step: int = 1
) -> Tensor:
    end = tensor.shape[dim] if end is None else min(end, tensor.shape[dim])
    return torch.slice_scatter(tensor, source, dim, start, end, step)


DIFFERENTIABLE = {"copy": _copy, "slice_scatter": _slice_scatter}
"""The same with a derivative by batches, for operations of which autograd knows none as torch.export writes
them: a copy, and a slice to the largest number there is."""
BY_POSITION = ("softmax", "_softmax", "log_softmax", "_log_softmax")
"""Functions along one dimension; where that is the channels', every position is treated by itself."""


@dataclass(frozen=True)
class Layout:
    """Arrangement of [samples, numbers of one sample] as a traced tensor."""

    index: Tensor  # [numbers of the tensor that belong to one sample]
    shape: tuple[int, ...]
    """Sizes of all dimensions but the samples'."""
    axis: int
    """Dimension of the samples."""
    merged: int | None
    """First of two dimensions that are merged into one, where the samples are part of one."""

    def arrange(self, stream: Tensor) -> Tensor:  # [n, P, c] -> the traced shape, for n samples
        numbers = stream.flatten(1)[:, self.index]  # [n, numbers]
        tensor = numbers.reshape(len(numbers), *self.shape).movedim(0, self.axis)
        return tensor if self.merged is None else tensor.flatten(self.merged, self.merged + 1)

    @classmethod
    def from_view(cls, view: StreamView, samples: int) -> "Layout":
        """Layout by where the numbers lie, with the samples in one dimension or merged into one."""
        per_sample = view.stream.positions * view.stream.channels
        shift = torch.arange(samples)[:, None] * per_sample
        for axis, size in enumerate(view.shape):
            if size % samples:
                continue
            alone, other = size == samples, size // samples
            for split, at in (((samples, other), axis), ((other, samples), axis + 1)):
                index = view.index if alone else view.index.unflatten(axis, split)
                at = axis if alone else at
                moved = index.movedim(at, 0)
                numbers = moved.flatten(1) if moved.ndim > 1 else moved[:, None]  # [samples, numbers]
                if torch.equal(numbers - shift, numbers[:1].expand_as(numbers)):
                    return cls(numbers[0], tuple(moved.shape[1:]), at, None if alone else axis)
        raise NoRuleError("samples of the batch are mixed")


@dataclass(frozen=True, eq=False)
class _Operation:
    """Torch operation as a function of streams with any number of samples."""

    traced: TracedModule
    node: fx.Node
    arguments: tuple[Any, Any]
    """args and kwargs."""
    layouts: dict[int, Layout]
    """Layouts of the views among the arguments, by their ids."""
    streams: tuple[Stream, ...]
    number: int | None = None
    """Number of the tensor that is meant where several come out."""

    def __call__(self, given: Sequence[Tensor]) -> Tensor:
        result = self.results(given)
        return result if self.number is None else result[self.number]

    def results(self, given: Sequence[Tensor]) -> Any:
        known, like = dict(zip(self.streams, given, strict=True)), given[0]

        def concrete(leaf: Any) -> Any:
            if isinstance(leaf, StreamView):
                return self.layouts[id(leaf)].arrange(known[leaf.stream])
            if isinstance(leaf, Integers):
                return leaf.function([known[stream] for stream in leaf.streams])
            if not isinstance(leaf, Constant):
                return leaf
            value = leaf.value
            if leaf.node is not None:  # depends on shapes alone, which are those of another number of samples
                example = self.traced.example
                shape = len(like), *example.shape[1:]
                value = self.traced.evaluate(leaf.node, example.new_empty(shape, device="meta"))
            return value.to(like) if isinstance(value, Tensor) and value.is_floating_point() else value

        target: Any = DIFFERENTIABLE.get(op_name(self.node), self.node.target)
        args, kwargs = tree_map(concrete, self.arguments)
        return target(*args, **kwargs)


def foreign(builder: StreamBuilder, node: fx.Node, args: Any, kwargs: Keywords, reason: str) -> Value:
    """Core that is differentiated automatically; ``reason`` says why it has no closed form."""
    name = f"{op_name(node)} {location(node)}"
    if any(isinstance(leaf, values.AttentionScores) for leaf in tree_leaves((args, kwargs))):
        raise InterbasisError(
            f"scores of attention are used {location(node)} in a way that is not supported ({reason}); "
            "expected softmax(q kᵀ · scale + mask) v with a mask that is empty or causal, or "
            "scaled_dot_product_attention"
        )

    def viewed(leaf: Any) -> Any:
        is_real = isinstance(leaf, values.PrefixValue) and leaf.value.is_floating_point()
        return builder.view(leaf) if is_real else leaf

    arguments = tree_map(viewed, (args, kwargs))
    streams: dict[Stream, None] = {}
    layouts: dict[int, Layout] = {}
    leaves = tree_leaves(arguments)
    for leaf in leaves:
        if isinstance(leaf, StreamView):
            streams.setdefault(leaf.stream)
            try:
                layouts[id(leaf)] = Layout.from_view(leaf, builder.samples)
            except NoRuleError as mixed:
                raise _mixed_samples(name) from mixed
        elif isinstance(leaf, Integers):
            streams |= dict.fromkeys(leaf.streams)
    if any(isinstance(leaf, values.PrefixValue) for leaf in leaves):
        raise InterbasisError(
            f"{name} combines computed numbers with whole numbers of the input ({reason}), which is not "
            "supported; expected inputs that are read once, before the first layer"
        )
    builder.fixed_lengths = True
    operation = _Operation(builder.traced, node, arguments, layouts, tuple(streams))
    zeros = [torch.zeros(builder.samples, s.positions, s.channels, dtype=torch.float64) for s in streams]
    with Explained(f"{name} could not be run by itself", Exception, remedy=reason):
        results = operation.results(zeros)
    by_position = False
    if op_name(node) in BY_POSITION and isinstance(arguments[0][0], StreamView):
        x, axis = arguments[0][:2]
        rows = values.group_if_possible(x, int(getattr(axis, "value", axis)), builder.samples)
        by_position = rows is not None and len(rows.channels) == 1
    if isinstance(results, Tensor):
        return _result(builder, results, operation, name, by_position)
    numbered = ((part, replace(operation, number=number)) for number, part in enumerate(results))
    return tuple(_result(builder, part, chosen, name, by_position) for part, chosen in numbered)


def _mixed_samples(name: str) -> InterbasisError:
    return InterbasisError(
        f"{name} mixes the samples of the batch; expected a module that treats every sample by itself"
    )


def _result(
    builder: StreamBuilder, result: Any, operation: _Operation, name: str, by_position: bool
) -> Value:
    """The stream that an operation puts out, with its samples, positions and channels told apart."""
    streams = operation.streams
    if not isinstance(result, Tensor):
        return Constant(result)
    if not result.is_floating_point():
        return Integers(streams, operation, tuple(result.shape))
    samples_axis = next((k for k, size in enumerate(result.shape) if size == builder.samples), None)
    if samples_axis is None:
        raise _mixed_samples(name)
    is_flat = result.ndim == 1
    result = result[:, None] if is_flat else result
    axis = default_axis(result.ndim) % result.ndim
    if axis == samples_axis:
        axis = (axis + 1) % result.ndim
    positions_axes = [k for k in range(result.ndim) if k not in (samples_axis, axis)]
    grid = tuple(result.shape[k] for k in positions_axes)
    grid = () if all(size == 1 for size in grid) else grid
    channels, order = result.shape[axis], [samples_axis, *positions_axes, axis]
    sizes = [stream.positions * stream.channels for stream in streams]

    def once(together: Tensor) -> Tensor:  # [n, numbers of all streams]
        parts = zip(together.split(sizes, dim=1), streams, strict=True)
        output = operation([part.unflatten(1, (-1, stream.channels)) for part, stream in parts])
        output = output[:, None] if is_flat else output
        return output.permute(*order).reshape(len(together), -1, channels)

    def run(given: Sequence[Tensor]) -> Tensor:
        return builder.traced.in_groups(once, torch.cat([value.flatten(1) for value in given], dim=1))

    stream = builder.stream(Foreign(streams, run, name, not by_position), grid, channels)
    view = builder.arranged(stream, order, result.shape)
    return StreamView(stream, view.index[:, 0]) if is_flat else view
