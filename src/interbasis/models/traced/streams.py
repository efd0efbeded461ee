"""The small graph that a traced module becomes: streams, and the operation that makes each.

A stream is [samples, positions, channels]; its positions are a grid, (height, width) of an image or (T,) of a
sequence, flattened row by row, or one for plain rows. Operations are of three kinds. `Mixed` is affine and
acts on the channels of each position by itself, so that a chain of them is one matrix. `Spread` operations
are linear and read several positions. Everything else is the core of a section, `CoreOp` or `Foreign`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, fx

from interbasis.models.traced.trace import SourceLocation
from interbasis.network.cores import Core, Elementwise
from interbasis.network.stencil import Stencil
from interbasis.network.window import Grid


@dataclass(frozen=True, eq=False)
class Stream:
    """A value of the traced module, [samples, positions, channels]."""

    grid: Grid
    channels: int
    op: "Op"
    location: SourceLocation

    @property
    def positions(self) -> int:
        return prod(self.grid)

    @property
    def inputs(self) -> "tuple[Stream, ...]":
        return self.op.inputs

    def is_core(self, *kinds: type[Core]) -> bool:
        """Whether a core of one of these kinds makes it."""
        return isinstance(self.op, CoreOp) and isinstance(self.op.core, kinds)


@dataclass(frozen=True, eq=False)
class Op:
    """Operation that computes a stream from others."""

    inputs: tuple[Stream, ...]

    def run(self, values: Sequence[Tensor]) -> Tensor:  # [n, P, c] each -> [n, P', c']
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class PrefixOutput(Op):
    """Traced tensor that the prefix computes, with its samples and its channels in a dimension each."""

    node: fx.Node
    samples_axis: int
    channels_axis: int


@dataclass(frozen=True, eq=False)
class Mixed(Op):
    """Σ_i W_i x_i + b at every position."""

    weights: tuple[Tensor, ...]  # [c, c_i] each
    bias: Tensor  # [c]
    is_linear_map: bool = False
    """Whether it is a map with weights of its own (nn.Linear), rather than a sum, a scale or a selection."""

    def run(self, values: Sequence[Tensor]) -> Tensor:
        total = self.bias.to(values[0]).expand(*values[0].shape[:2], -1)
        for weight, value in zip(self.weights, values, strict=True):
            total = total + value @ weight.to(value).T
        return total


MEAN = "the mean"
"""Description of the `Gathered` that is the mean over all positions."""


@dataclass(frozen=True, eq=False)
class Spread(Op):
    """Linear operation that reads several positions, by a stencil."""

    stencil: Stencil

    def taps_after(self, weight: Tensor) -> Tensor:  # [rows, c] -> [rows, K, c_in]
        """Matrices on the taps that it reads, for a matrix on its output."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Gathered(Spread):
    """Single tap, all channels alike: a choice of positions, means, enlarged images."""

    description: str

    def taps_after(self, weight: Tensor) -> Tensor:
        return weight[:, None]

    @property
    def any_length(self) -> bool:
        """Whether it means the same for sequences of any length."""
        return self.description == MEAN or self.stencil.index.flatten().tolist() == [0]

    def run(self, values: Sequence[Tensor]) -> Tensor:
        if self.description == MEAN:
            return values[0].mean(1, keepdim=True)
        return self.stencil.tap(values[0], 0)


@dataclass(frozen=True, eq=False)
class Flattened(Spread):
    """All positions side by side as channels of one: [n, P, c] -> [n, 1, P·c]."""

    def taps_after(self, weight: Tensor) -> Tensor:
        return weight.unflatten(1, (self.stencil.taps, -1))

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return values[0].flatten(1)[:, None]


@dataclass(frozen=True, eq=False)
class Convolved(Spread):
    """Convolution without its bias, which is a `Mixed` after it."""

    taps: Tensor  # [c, K, c_in]

    def taps_after(self, weight: Tensor) -> Tensor:
        if (weight != 0).sum(1).max() <= 1:  # a batch norm's factors, or a choice of channels
            channels = weight.abs().argmax(1)
            return weight.gather(1, channels[:, None])[..., None] * self.taps[channels]
        return (weight @ self.taps.flatten(1)).unflatten(1, self.taps.shape[1:])

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return torch.einsum("nskd,ckd->nsc", self.stencil.patches(values[0]), self.taps.to(values[0]))


@dataclass(frozen=True, eq=False)
class CoreOp(Op):
    """Core of a section, which reads the streams side by side."""

    core: Core

    def run(self, values: Sequence[Tensor]) -> Tensor:
        u = torch.cat(list(values), dim=-1)
        if isinstance(self.core, Elementwise):  # which subtracts its value at 0
            return self.core.activation(u)
        return self.core(u, slice(0, u.shape[1]))


@dataclass(frozen=True, eq=False)
class PositionTable(CoreOp):
    """Constants of every position; its input, to which they are added, says that it comes later."""

    def run(self, values: Sequence[Tensor]) -> Tensor:
        ones = values[0].new_ones(*values[0].shape[:2], 1)
        return self.core(ones, slice(0, ones.shape[1]))


@dataclass(frozen=True, eq=False)
class MaxPooled(CoreOp):
    """Largest number of every window."""

    stencil: Stencil

    def run(self, values: Sequence[Tensor]) -> Tensor:
        index, weight = self.stencil.index[..., 0], self.stencil.weight[..., 0]
        return torch.where(weight[..., None] == 0, -torch.inf, values[0][:, index]).amax(2)


@dataclass(frozen=True, eq=False)
class Foreign(Op):
    """Function of streams that has no closed form."""

    function: Callable[[Sequence[Tensor]], Tensor]
    description: str
    mixes_positions: bool = True

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return self.function(values)


CORES = (CoreOp, Foreign)
"""Operations that are not linear."""


def evaluate(wanted: Sequence[Stream], known: dict[Stream, Tensor]) -> list[Tensor]:
    """Compute streams from others that are known, [n, P, c] each."""
    values = dict(known)
    for stream in in_order(wanted, set(known)):
        values[stream] = stream.op.run([values[s] for s in stream.inputs])
    return [values[stream] for stream in wanted]


def in_order(wanted: Sequence[Stream], known: set[Stream]) -> list[Stream]:
    """Streams that have to be computed for the wanted ones, each after its inputs."""
    order: list[Stream] = []
    seen = set(known)
    stack: list[tuple[Stream, bool]] = [(stream, False) for stream in reversed(wanted)]
    while stack:
        stream, ready = stack.pop()
        if ready:
            order.append(stream)
        elif stream not in seen:
            seen.add(stream)
            stack.append((stream, True))
            stack.extend((s, False) for s in reversed(stream.inputs))
    return order


def selection(channels: Tensor, width: int) -> Tensor:  # [k], -> [k, width]
    """Matrix that selects channels."""
    matrix = torch.zeros(len(channels), width, dtype=torch.float64)
    matrix[torch.arange(len(channels)), channels] = 1
    return matrix
