"""Stencils: the positions of one grid that every position of another reads, as in convolutions and pooling.

A stencil has K taps. Tap k of output s reads Σ_t W_k[s, t] f_t; for a convolution that is one pixel at an
offset, or nothing beyond the border, for an average all pixels of a window. The patch of output s is

    p_s = (1, W_0 f |_s, W_1 f |_s, …, W_{K−1} f |_s),          1 + K·d numbers,

and everything a section does with its input is a matrix times p_s. Two taps meet where they read the same
pixels, and a sum over all pixels of products of Jacobians is a sum over pairs of taps,

    Σ_t W_k[s, t] W_k′[s, t] = o_kk′(s),    the overlap:   1 for a tap of a convolution with itself,
                                                            0 beyond the border (zero padding),
                                                            1 for two taps that reflection puts on one pixel.

Few different overlaps occur: all outputs in the interior have the same, so has every strip along the border.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.network.window import Grid, SlidingWindow, combined

MAX_DENSE_ELEMENTS = 2**24
"""Elements of the taps' weights over all pixels that are held at once while overlaps are computed."""


@dataclass(frozen=True, eq=False)
class OutputClass:
    """Output positions with the same overlaps of taps."""

    positions: Tensor  # int64 [members]
    pairs: tuple[tuple[int, int, float], ...]
    """(k, k′, o_kk′) for all pairs of taps that overlap, in both orders."""


@dataclass(frozen=True, eq=False)
class Stencil:
    """K taps from a grid of T positions to one of S."""

    source: Grid
    target: Grid
    index: Tensor  # int64 [S, K, L]
    """The pixels of every tap; L = 1 for all but averages."""
    weight: Tensor  # float64 [S, K, L]
    """Weights of the pixels; 0 where there is no pixel."""
    window: SlidingWindow | None = None
    """Sliding window of the first taps, where they are those of a convolution."""

    def __post_init__(self) -> None:
        if self.index.shape != self.weight.shape or len(self.index) != math.prod(self.target):
            raise InterbasisError(
                f"expected indices and weights [{math.prod(self.target)} positions, taps, pixels] for the "
                f"grid {self.target}, received {list(self.index.shape)} and {list(self.weight.shape)}"
            )

    def __repr__(self) -> str:
        return f"Stencil({_shape(self.source)} → {_shape(self.target)}: {self.window or f'{self.taps} taps'})"

    @classmethod
    def sliding(cls, grid: Grid, window: SlidingWindow) -> "Stencil":
        """A tap for every offset of a sliding window; for a maximum its mode is ``inside``."""
        pixels, plain = window.pixels(grid), None if window.mode == "inside" else window
        return cls._from_pixels(grid, window.target(grid), pixels, plain)

    @classmethod
    def _from_pixels(
        cls, grid: Grid, target: Grid, pixels: Tensor, window: SlidingWindow | None = None
    ) -> "Stencil":
        """A tap for every pixel [S, K] that an output reads; −1 is none."""
        return cls(grid, target, pixels.clamp_min(0)[..., None], (pixels >= 0).double()[..., None], window)

    @classmethod
    def pointwise(cls, grid: Grid) -> "Stencil":
        """One tap: every output reads its own pixel."""
        positions = torch.arange(math.prod(grid))[:, None, None]
        return cls(grid, grid, positions, torch.ones(positions.shape, dtype=torch.float64))

    @classmethod
    def flattened(cls, grid: Grid) -> "Stencil":
        """One output position, to which every pixel is a tap."""
        every = torch.arange(math.prod(grid))[None, :, None]
        return cls(grid, (), every, torch.ones(every.shape, dtype=torch.float64))

    @classmethod
    def average(
        cls, grid: Grid, window: SlidingWindow, *, count_padding: bool = True, divisor: int | None = None
    ) -> "Stencil":
        """One tap: the mean over a sliding window, as `torch.nn.AvgPool2d` takes it.

        ``count_padding`` divides by all pixels of the window, those of the padding among them (but not those
        beyond it, which `ceil` adds).
        """
        pixels = window.pixels(grid)  # [S, K]
        inside = pixels >= 0
        counts = inside.sum(1)
        if divisor is not None:
            counts = torch.full_like(counts, divisor)
        elif count_padding:
            counts = torch.ones((), dtype=torch.int64)
            for d, outputs in enumerate(window.target(grid)):
                places = torch.arange(outputs)[:, None] * window.stride[d]
                places = places + torch.arange(window.kernel[d]) * window.dilation[d]
                counts = counts[..., None] * (places < grid[d] + sum(window.padding[d])).sum(1)
            counts = counts.flatten()
        weight = inside.double() / counts[:, None]
        return cls(grid, window.target(grid), pixels.clamp_min(0)[:, None], weight[:, None])

    @classmethod
    def adaptive(cls, grid: Grid, target: Grid, *, maximum: bool = False) -> "Stencil":
        """Windows that cut a grid into ``target`` parts: one tap, the mean, or a tap per pixel for a maximum.

        A target of 1 in every dimension is global pooling.
        """
        lines = []
        for size, parts in zip(grid, target, strict=True):
            starts = torch.arange(parts) * size // parts
            stops = -(-(torch.arange(1, parts + 1) * size) // parts)
            offsets = torch.arange(int((stops - starts).max()))
            places = starts[:, None] + offsets
            lines.append(torch.where(places < stops[:, None], places, starts[:, None] if maximum else -1))
        pixels = combined(lines, grid)
        if maximum:
            return cls._from_pixels(grid, target, pixels)
        inside = pixels >= 0
        weight = inside.double() / inside.sum(1, keepdim=True)
        return cls(grid, target, pixels.clamp_min(0)[:, None], weight[:, None])

    @classmethod
    def transposed(cls, grid: Grid, window: SlidingWindow, output_padding: Grid) -> "Stencil":
        """A tap for every offset of a transposed convolution: s·stride + δ·dilation − padding reads s."""
        lines = []
        for d, size in enumerate(grid):
            stride, dilation, kernel = window.stride[d], window.dilation[d], window.kernel[d]
            outputs = (
                (size - 1) * stride - sum(window.padding[d]) + dilation * (kernel - 1) + output_padding[d] + 1
            )
            steps = torch.arange(outputs)[:, None] + window.padding[d][0] - torch.arange(kernel) * dilation
            places = steps // stride
            fits = (steps % stride == 0) & (places >= 0) & (places < size)
            lines.append(torch.where(fits, places, -1))
        return cls._from_pixels(grid, tuple(map(len, lines)), combined(lines, grid))

    @property
    def taps(self) -> int:
        return self.index.shape[1]

    @property
    def positions(self) -> int:
        """Positions that come out."""
        return self.index.shape[0]

    def with_taps(self, other: "Stencil") -> tuple["Stencil", list[int]]:
        """This stencil with the taps of another that it lacks, and where all of the other's are.

        For a section whose skip reads other pixels than its read, a strided shortcut, say.
        """
        if self.source != other.source or self.target != other.target:
            raise InterbasisError(f"expected stencils between the same grids, received {self} and {other}")
        depth = max(self.index.shape[2], other.index.shape[2])
        index, weight = _deepened(self, depth)
        places: list[int] = []
        for k in range(other.taps):
            extra_index, extra_weight = (part[:, k : k + 1] for part in _deepened(other, depth))
            same = (
                ((weight == extra_weight) & ((index == extra_index) | (weight == 0))).flatten(2).all(2).all(0)
            )
            matches = same.nonzero()[:, 0].tolist()
            if matches:
                places.append(matches[0])
                continue
            places.append(index.shape[1])
            index, weight = torch.cat([index, extra_index], 1), torch.cat([weight, extra_weight], 1)
        return replace(self, index=index, weight=weight), places

    def tap(self, f: Tensor, k: int) -> Tensor:  # [n, T, d] -> [n, S, d]
        """W_k f."""
        index, weight = self.index[:, k], self.weight[:, k]  # [S, L]
        if self._untouched[k]:
            return f
        if len(index) == 1:
            return torch.einsum("ntd,t->nd", f[:, index[0]], weight[0].to(f))[:, None]
        result = f[:, index[:, 0]]
        if not self._whole[k]:
            result = result * weight[:, 0, None].to(f)
        for depth in range(1, index.shape[1]):
            result = result + f[:, index[:, depth]] * weight[:, depth, None].to(f)
        return result

    def patches(self, f: Tensor) -> Tensor:  # [n, T, d] -> [n, S, K, d]
        """W_k f for all taps."""
        if self.index.shape[2] > 1:
            return torch.stack([self.tap(f, k) for k in range(self.taps)], dim=2)
        gathered = f[:, self.index[..., 0]]
        return gathered if all(self._whole) else gathered * self.weight.to(f)

    @cached_property
    def _whole(self) -> list[bool]:
        """Whether each tap is one pixel with weight 1 at every output."""
        single = (self.weight[..., 1:] == 0).all(2).all(0)
        return ((self.weight[..., 0] == 1).all(0) & single).tolist()

    @cached_property
    def _untouched(self) -> list[bool]:
        """Whether each tap is the identity."""
        if self.source != self.target:
            return [False] * self.taps
        positions = torch.arange(self.positions)[:, None]
        return [
            whole and bool((self.index[:, k, :1] == positions).all()) for k, whole in enumerate(self._whole)
        ]

    @cached_property
    def classes(self) -> tuple[OutputClass, ...]:
        """Output positions with equal overlaps, the largest class first."""
        patterns = self._single_patterns() if self.index.shape[2] == 1 else self._overlaps()
        different, class_number = patterns.flatten(1).unique(dim=0, return_inverse=True)
        classes = []
        for number, pattern in enumerate(different):
            members = (class_number == number).nonzero()[:, 0]
            if self.index.shape[2] == 1:
                pairs = _single_pairs(pattern.view(self.taps, 2))
            else:
                matrix = pattern.view(self.taps, self.taps)
                pairs = tuple((k, other, matrix[k, other].item()) for k, other in matrix.nonzero().tolist())
            classes.append(OutputClass(members, pairs))
        return tuple(sorted(classes, key=lambda output_class: -len(output_class.positions)))

    def _single_patterns(self) -> Tensor:  # [S, K, 2]
        """Weight of every tap of one pixel, and the first tap that reads the same pixel."""
        weight = self.weight[..., 0]
        index = torch.where(weight == 0, -1, self.index[..., 0])
        order = index.argsort(dim=1, stable=True)
        ordered = index.gather(1, order)
        fresh = torch.ones_like(ordered, dtype=torch.bool)
        fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        places = torch.where(fresh, torch.arange(self.taps), 0).cummax(1).values
        first = torch.empty_like(order).scatter_(1, order, order.gather(1, places))
        return torch.stack([weight, torch.where(weight == 0, -1, first).double()], dim=2)

    def _overlaps(self) -> Tensor:  # [S, K, K]
        """o_kk′(s), from weights over all pixels, some outputs at a time."""
        if self.taps == 1:
            return self.weight.square().sum(2, keepdim=True)
        T, rows = math.prod(self.source), []
        step = max(1, MAX_DENSE_ELEMENTS // (self.taps * T))
        for start in range(0, self.positions, step):
            index, weight = self.index[start : start + step], self.weight[start : start + step]
            dense = weight.new_zeros(*index.shape[:2], T).scatter_add_(2, index, weight)
            rows.append(dense @ dense.mT)
        return torch.cat(rows)


def _single_pairs(pattern: Tensor) -> tuple[tuple[int, int, float], ...]:  # [K, 2]
    """Pairs of taps on the same pixel, with the product of their weights."""
    together: dict[int, list[tuple[int, float]]] = {}
    for k, (weight, first) in enumerate(pattern.tolist()):
        if weight:
            together.setdefault(int(first), []).append((k, weight))
    return tuple((k, other, a * b) for taps in together.values() for k, a in taps for other, b in taps)


def _deepened(stencil: Stencil, depth: int) -> tuple[Tensor, Tensor]:
    """Indices and weights with room for so many pixels per tap."""
    more = depth - stencil.index.shape[2]
    pad = torch.nn.functional.pad
    return pad(stencil.index, (0, more)), pad(stencil.weight, (0, more))


def _shape(grid: Grid) -> str:
    return "×".join(map(str, grid)) or "one position"
