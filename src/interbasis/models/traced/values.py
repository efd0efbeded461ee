"""Values of a traced graph while it is recognised.

A traced tensor of any shape that holds a stream's numbers, reshaped, transposed, sliced or repeated, is a
`StreamView`: the stream, and an integer tensor of the traced shape with flat indices into [samples,
positions, channels]. An operation that only moves numbers is applied to these integers, whatever it is; an
operation that computes looks up where samples, positions and channels are. A site is a sample and a position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from interbasis.models.traced.streams import Stream

NEGLIGIBLE = -1e4
"""Masks add this or less to attention scores that are not to count."""


class NoRuleError(Exception):
    """An operation has no closed form for these arguments; the message says why."""


@dataclass(frozen=True, eq=False)
class Constant:
    """Value that does not depend on the input's numbers: a weight, a number, a shape."""

    value: Any
    node: fx.Node | None = None
    """Node that computes it, where it depends on the input's shape."""


@dataclass(frozen=True, eq=False)
class PrefixValue:
    """Value that belongs to the prefix: tokens, embeddings, the input reshaped."""

    node: fx.Node
    value: Tensor
    """On the example."""


@dataclass(frozen=True, eq=False)
class StreamView:
    """Traced tensor that holds numbers of a stream."""

    stream: Stream
    index: Tensor  # integers of the traced shape: (sample · P + position) · channels + channel

    @property
    def shape(self) -> torch.Size:
        return self.index.shape

    @property
    def sites(self) -> Tensor:
        """sample · P + position."""
        return self.index // self.stream.channels

    @property
    def channels(self) -> Tensor:
        return self.index % self.stream.channels

    def expand(self, shape: torch.Size) -> "StreamView":
        return StreamView(self.stream, self.index.expand(shape))


@dataclass(frozen=True, eq=False)
class AttentionScores:
    """Queries times keys, on the way to attention: [..., queries, keys]."""

    query: StreamView  # [..., T, h]
    key: StreamView  # [..., T, h]
    shape: tuple[int, ...]
    """Shape of the traced tensor."""
    scale: float = 1.0
    causal: bool = False
    softmax: bool = False

    def scaled(self, factor: float) -> "AttentionScores":
        if self.softmax or self.causal:
            raise NoRuleError("scores are scaled after they were masked")
        return replace(self, scale=self.scale * factor)

    def masked(self, mask: Tensor | float) -> "AttentionScores":
        """Scores with a mask that is added, or that is true for those that count; empty or causal."""
        mask = torch.as_tensor(mask).expand(self.shape)
        if mask.dtype == torch.bool:
            counts = mask
        else:
            counts = mask == 0
            if ((mask > NEGLIGIBLE) & ~counts).any():
                raise NoRuleError("a bias of attention scores has no closed form")
        if counts.all():
            return self
        if torch.equal(counts, torch.ones_like(counts).tril()):
            return replace(self, causal=True)
        raise NoRuleError("an attention mask that is not causal has no closed form")


@dataclass(frozen=True, eq=False)
class Integers:
    """Whole numbers or truth values computed from streams: which entries are the largest, a comparison.

    They have no derivative. Each operation that reads them computes them again, as a part of its own core.
    """

    streams: tuple[Stream, ...]
    function: Callable[[Sequence[Tensor]], Tensor]
    shape: tuple[int, ...]
    """Shape of the traced tensor."""


Value = Constant | PrefixValue | StreamView | AttentionScores | Integers | tuple[Any, ...]
"""Operations that return several tensors have tuples of values."""
RECOGNISED = (StreamView, AttentionScores, Integers)
"""Values that are computed by layers."""
COMPUTED = (PrefixValue, *RECOGNISED)
"""Values that depend on the input's numbers."""
Keywords = Mapping[str, Any]
"""Arguments of an operation by name."""


@dataclass(frozen=True)
class Alignment:
    """Tensors of one shape, entry by entry: the same k channels at every site."""

    channels: list[Tensor]  # [k] for each view
    index: Tensor
    """Indices of the result, a view of a stream of k channels."""
    order: Tensor  # [sites · k]
    """Entries of the flattened tensors, site by site."""

    def same_at_all_sites(self, constants: Tensor, reason: str) -> Tensor:  # the traced shape -> [k]
        """Constants for the k channels, which must not depend on the site."""
        return _common_row(self._by_site(constants), reason)

    def by_position(self, constants: Tensor, samples: int) -> Tensor:  # the traced shape -> [positions, k]
        """Constants for the k channels at every position, which must not depend on the sample."""
        by_sample = self._by_site(constants).unflatten(0, (samples, -1))
        return _common_row(by_sample, "a constant differs between samples").clone()

    def _by_site(self, constants: Tensor) -> Tensor:  # the traced shape -> [sites, k]
        return constants.expand(self.index.shape).flatten()[self.order].view(-1, len(self.channels[0]))


def align(views: Sequence[StreamView], samples: int) -> Alignment:
    """Alignment for an operation on every entry of tensors of one shape."""
    if len({view.stream.grid for view in views}) > 1:
        raise NoRuleError("their positions differ")
    sites = views[0].sites.flatten()
    if any(not torch.equal(view.sites.flatten(), sites) for view in views[1:]):
        raise NoRuleError("numbers of different positions or samples meet")
    order, k = _sorted_by_site(sites, samples * views[0].stream.positions)
    reason = "channels lie differently at different positions"
    channels = [_common_row(view.channels.flatten()[order].view(-1, k), reason) for view in views]
    return Alignment(channels, order.argsort().view(views[0].shape), order)


@dataclass(frozen=True)
class Grouping:
    """Rows of one tensor along a dimension: ``groups`` of them at every site."""

    channels: Tensor  # [groups, length]
    rows: Tensor
    """site · groups + group, for the other dimensions."""

    def result(self, width: int, axis: int) -> Tensor:
        """Indices of a view of a stream with ``width`` channels per group."""
        return (self.rows[..., None] * width + torch.arange(width)).movedim(-1, axis)


def group(view: StreamView, axis: int, samples: int) -> Grouping:
    """Grouping for an operation along one dimension of a tensor, which must be channels of one site."""
    index = view.index.movedim(axis, -1)
    sites = index // view.stream.channels
    if (sites != sites[..., :1]).any():
        raise NoRuleError("a dimension that is read as features holds several positions or samples")
    order, groups = _sorted_by_site(sites[..., 0].flatten(), samples * view.stream.positions)
    channels = (index % view.stream.channels).flatten(0, -2)[order].view(-1, groups, index.shape[-1])
    channels = _common_row(channels, "channels lie differently at different positions")
    return Grouping(channels, order.argsort().view(index.shape[:-1]))


def group_if_possible(view: StreamView, axis: int, samples: int) -> Grouping | None:
    try:
        return group(view, axis, samples)
    except NoRuleError:
        return None


def _sorted_by_site(sites: Tensor, count: int) -> tuple[Tensor, int]:
    """The order that puts entries of one site together, and how many there are of each."""
    per_site = torch.bincount(sites, minlength=count)
    if len(per_site) != count or (per_site != per_site[0]).any() or not len(sites):
        raise NoRuleError("some positions are there more often than others")
    return sites.argsort(stable=True), int(per_site[0])


def _common_row(rows: Tensor, reason: str) -> Tensor:
    if (rows != rows[:1]).any():
        raise NoRuleError(reason)
    return rows[0]
