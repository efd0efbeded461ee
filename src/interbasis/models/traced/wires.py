"""Which entry of which stream every entry of a traced tensor is.

A traced tensor of any shape that holds a stream's numbers, reshaped, transposed, sliced or repeated, is a
`Wire`: the stream, and an integer tensor of the traced shape with flat indices into [samples, positions,
channels]. An operation that only moves numbers is applied to these integers, whatever it is; an operation
that computes looks up where samples, positions and channels are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.models.traced.streams import Stream
from interbasis.network.window import Grid


class MisplacedError(Exception):
    """The numbers do not lie as an operation on channels needs them."""


@dataclass(frozen=True, eq=False)
class Wire:
    """A traced tensor that holds numbers of a stream."""

    stream: Stream
    where: Tensor  # integers of the traced shape: (sample · P + position) · channels + channel

    @property
    def spots(self) -> Tensor:
        """Sample and position in one, sample · P + position."""
        return self.where // self.stream.channels

    @property
    def channels(self) -> Tensor:
        return self.where % self.stream.channels

    def expand(self, shape: torch.Size) -> "Wire":
        return Wire(self.stream, self.where.expand(shape))


def whole(stream: Stream, samples: int) -> Tensor:  # [samples, P, channels]
    """Where everything lies in the stream itself."""
    count = samples * stream.positions * stream.channels
    return torch.arange(count).view(samples, stream.positions, stream.channels)


@dataclass(frozen=True)
class Alignment:
    """Tensors of one shape, entry by entry: the same channels at every spot."""

    channels: list[Tensor]  # [k] for each wire
    where: Tensor
    """Of the result, a stream of k channels."""
    order: Tensor  # [spots · k]
    """The entries of the flattened tensors, spot by spot."""


def align(wires: Sequence[Wire], samples: int) -> Alignment:
    """For an operation on every entry of tensors of one shape."""
    if len({wire.stream.grid for wire in wires}) > 1:
        raise MisplacedError("their positions differ")
    spots = wires[0].spots.flatten()
    if any(not torch.equal(wire.spots.flatten(), spots) for wire in wires[1:]):
        raise MisplacedError("numbers of different positions or samples meet")
    order, k = _by_spot(spots, samples * wires[0].stream.positions)
    channels = [_same_everywhere(wire.channels.flatten()[order].view(-1, k)) for wire in wires]
    where = torch.empty_like(spots)
    where[order] = torch.arange(len(spots))
    return Alignment(channels, where.view(wires[0].where.shape), order)


@dataclass(frozen=True)
class Grouping:
    """Rows of one tensor along a dimension: ``groups`` of them at every spot."""

    channels: Tensor  # [groups, length]
    rows: Tensor
    """Of the other dimensions: spot · groups + group."""

    def result(self, width: int, axis: int) -> Tensor:
        """Where the entries lie in a stream with ``width`` channels per group."""
        where = self.rows[..., None] * width + torch.arange(width)
        return where.movedim(-1, axis)


def group(wire: Wire, axis: int, samples: int) -> Grouping:
    """For an operation along one dimension of a tensor, which must be channels of one spot."""
    where = wire.where.movedim(axis, -1)
    spots = where // wire.stream.channels
    if (spots != spots[..., :1]).any():
        raise MisplacedError("a dimension that is read as features holds several positions or samples")
    flat = spots[..., 0].flatten()
    order, groups = _by_spot(flat, samples * wire.stream.positions)
    channels = (where % wire.stream.channels).flatten(0, -2)[order].view(-1, groups, where.shape[-1])
    rows = torch.empty_like(flat)
    rows[order] = torch.arange(len(flat))
    return Grouping(_same_everywhere(channels), rows.view(where.shape[:-1]))


def _by_spot(spots: Tensor, count: int) -> tuple[Tensor, int]:
    """The order that puts entries of one spot together, and how many there are of each."""
    per_spot = torch.bincount(spots, minlength=count)
    if len(per_spot) != count or (per_spot != per_spot[0]).any() or not len(spots):
        raise MisplacedError("some positions are there more often than others")
    return spots.argsort(stable=True), int(per_spot[0])


def _same_everywhere(rows: Tensor) -> Tensor:
    if (rows != rows[:1]).any():
        raise MisplacedError("channels lie differently at different positions")
    return rows[0]


def kept_positions(wire: Wire, samples: int) -> tuple[tuple[int, ...], Tensor] | None:
    """The positions that a tensor holds where they are not all, and where it lies among those; else None."""
    positions = wire.stream.positions
    at = wire.spots % positions
    kept = at.unique()
    if len(kept) == positions:
        return None
    number = torch.full((positions,), -1)
    number[kept] = torch.arange(len(kept))
    sample = wire.spots // positions
    where = (sample * len(kept) + number[at]) * wire.stream.channels + wire.channels
    return tuple(kept.tolist()), where


def shrunk(grid: Grid, positions: tuple[int, ...]) -> Grid:
    """The grid of some positions: none for one, a row of them otherwise."""
    return () if len(positions) == 1 else (len(positions),)
