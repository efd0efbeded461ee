"""The small graph that a traced module becomes: streams, and the operation that makes each.

A stream is [samples, positions, channels]; its positions are a grid, (height, width) of an image or (T,) of a
sequence, flattened row by row, or one for plain rows. Operations are of three kinds. `Mixed` is affine and
acts on the channels of each position by itself, so that a chain of them is one matrix. `Spread` operations
are linear and read several positions. `CoreOp` is everything else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, fx, nn

from interbasis.models.traced.trace import Place
from interbasis.network.cores import Attention, AttentionShape
from interbasis.network.stencil import Stencil
from interbasis.network.window import Grid


@dataclass(frozen=True, eq=False)
class Stream:
    """One of the traced module's values."""

    grid: Grid
    channels: int
    made: "Op"
    place: Place
    callers: tuple[str, ...] = ()
    """The names of the modules that make it, the outermost first."""

    @property
    def positions(self) -> int:
        return prod(self.grid)

    @property
    def inputs(self) -> "tuple[Stream, ...]":
        return self.made.inputs


class Op:
    """How a stream is made from others."""

    inputs: tuple[Stream, ...]

    def run(self, values: Sequence[Tensor]) -> Tensor:  # [n, P, c] each -> [n, P', c']
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Given(Op):
    """What the prefix computes: a traced tensor, with its samples and its channels in a dimension each."""

    node: fx.Node
    samples_axis: int
    channels_axis: int | None
    """None: one channel."""
    inputs: tuple[Stream, ...] = ()


@dataclass(frozen=True, eq=False)
class Mixed(Op):
    """Σ_i W_i x_i + b at every position."""

    inputs: tuple[Stream, ...]
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
"""What `Gathered` calls the mean over all positions."""


class Spread(Op):
    """Linear, and reads several positions, by a stencil."""

    stencil: Stencil

    def taps_after(self, weight: Tensor) -> Tensor:  # [rows, c] -> [rows, K, c_in]
        """A matrix on what it puts out as matrices on the taps that it reads."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Gathered(Spread):
    """One tap, all channels alike: some of the positions, means, enlarged images."""

    inputs: tuple[Stream, ...]
    stencil: Stencil
    what: str
    """In words, for people to read."""

    def taps_after(self, weight: Tensor) -> Tensor:
        return weight[:, None]

    @property
    def any_length(self) -> bool:
        """Whether it means the same for sequences of any length."""
        return self.what == MEAN or self.stencil.index.flatten().tolist() == [0]

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return values[0].mean(1, keepdim=True) if self.what == MEAN else self.stencil.tap(values[0], 0)


@dataclass(frozen=True, eq=False)
class Flattened(Spread):
    """All positions side by side as channels of one: [n, P, c] -> [n, 1, P·c]."""

    inputs: tuple[Stream, ...]
    stencil: Stencil

    def taps_after(self, weight: Tensor) -> Tensor:
        return weight.unflatten(1, (self.stencil.taps, -1))

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return values[0].flatten(1)[:, None]


@dataclass(frozen=True, eq=False)
class Convolved(Spread):
    """A convolution without its bias, which is a `Mixed` after it."""

    inputs: tuple[Stream, ...]
    stencil: Stencil
    taps: Tensor  # [c, K, c_in]

    def taps_after(self, weight: Tensor) -> Tensor:
        if (weight != 0).sum(1).max() <= 1:  # a batch norm's factors, or some of the channels
            channels = weight.abs().argmax(1)
            return weight.gather(1, channels[:, None])[..., None] * self.taps[channels]
        return (weight @ self.taps.flatten(1)).unflatten(1, self.taps.shape[1:])

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return torch.einsum("nskd,ckd->nsc", self.stencil.patches(values[0]), self.taps.to(values[0]))


class CoreOp(Op):
    """Not linear: each is the core of a section."""


@dataclass(frozen=True, eq=False)
class Applied(CoreOp):
    """A function of every number by itself, or with other numbers for every channel."""

    inputs: tuple[Stream, ...]
    activation: nn.Module

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return self.activation(values[0])


@dataclass(frozen=True, eq=False)
class MeanSquare(CoreOp):
    """The mean square of all channels, one channel: the variance of what is centred."""

    inputs: tuple[Stream, ...]

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return values[0].square().mean(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Divided(CoreOp):
    """x / √(v + ε), of v (one channel) and x."""

    inputs: tuple[Stream, ...]
    epsilon: float

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return values[1] * (values[0].clamp_min(0) + self.epsilon).rsqrt()


@dataclass(frozen=True, eq=False)
class Attended(CoreOp):
    """Attention on one stream of queries, keys and values, [q | k | v]."""

    inputs: tuple[Stream, ...]
    shape: AttentionShape

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return Attention(self.shape)(values[0], slice(0, values[0].shape[1]))


@dataclass(frozen=True, eq=False)
class Product(CoreOp):
    """act(g) ∘ w."""

    inputs: tuple[Stream, ...]
    activation: nn.Module

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return self.activation(values[0]) * values[1]


@dataclass(frozen=True, eq=False)
class MaxPooled(CoreOp):
    """The largest number of every window."""

    inputs: tuple[Stream, ...]
    stencil: Stencil

    def run(self, values: Sequence[Tensor]) -> Tensor:
        index, weight = self.stencil.index[..., 0], self.stencil.weight[..., 0]
        taps = values[0][:, index]
        return torch.where(weight[..., None] == 0, -torch.inf, taps).amax(2)


@dataclass(frozen=True, eq=False)
class Foreign(CoreOp):
    """What has no closed form: a function of some streams, [n, P, c] each."""

    inputs: tuple[Stream, ...]
    function: Callable[[Sequence[Tensor]], Tensor]
    what: str
    mixes_positions: bool = True

    def run(self, values: Sequence[Tensor]) -> Tensor:
        return self.function(values)


def evaluate(wanted: Sequence[Stream], known: dict[Stream, Tensor]) -> list[Tensor]:
    """Streams from others that are known, [n, P, c] each."""
    values = dict(known)
    for stream in in_order(wanted, set(known)):
        values[stream] = stream.made.run([values[s] for s in stream.inputs])
    return [values[stream] for stream in wanted]


def in_order(wanted: Sequence[Stream], known: set[Stream]) -> list[Stream]:
    """Those that have to be made for some, each after its inputs."""
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
    """The matrix that picks channels."""
    matrix = torch.zeros(len(channels), width, dtype=torch.float64)
    matrix[torch.arange(len(channels)), channels] = 1
    return matrix
