"""The geometry of a sliding window along the dimensions of a grid: which pixels every output reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError

Grid = tuple[int, ...]
"""The shape of a grid of positions, (length,), (height, width) or (depth, height, width), the last dimension
fastest; () is a single position."""
PaddingMode = Literal["zeros", "reflect", "replicate", "circular", "inside"]
"""Pixel that a window reads outside the grid: none, or another one. ``inside`` is for maxima: a pixel of the
same window that exists, which changes no maximum."""


@dataclass(frozen=True)
class SlidingWindow:
    """A window that slides over a grid, with a number (or a pair) for every dimension.

    Output s reads the pixels s·stride + δ·dilation − padding, δ = 0 … kernel − 1, as `torch.nn.Conv2d` does.
    """

    kernel: Grid
    stride: Grid
    dilation: Grid
    padding: tuple[tuple[int, int], ...]
    """(before, after)."""
    mode: PaddingMode = "zeros"
    ceil: bool = False
    """Whether a last window that reaches beyond the padding counts (`ceil_mode` of a pool)."""

    @classmethod
    def from_arguments(
        cls,
        kernel: Sequence[int],
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: int | Sequence[int] | Sequence[tuple[int, int]] = 0,
        mode: PaddingMode = "zeros",
    ) -> "SlidingWindow":
        """Read the arguments of a convolution; a single number is for all dimensions.

        Args:
            kernel: Size of the window in every dimension.
            stride: Steps between two outputs.
            dilation: Steps between two pixels of a window.
            padding: Pixels before and after, or pairs of them for every dimension.
            mode: What is read there.

        Returns:
            The window.
        """
        dims = len(kernel)
        pads = _each(padding, dims, "padding")
        pairs = tuple((pad, pad) if isinstance(pad, int) else (pad[0], pad[1]) for pad in pads)
        return cls(
            tuple(kernel), _numbers(stride, dims, "stride"), _numbers(dilation, dims, "dilation"), pairs, mode
        )

    def target(self, grid: Grid) -> Grid:
        """The grid of the outputs."""
        if len(grid) != len(self.kernel):
            raise InterbasisError(
                f"expected a window of {len(grid)} dimensions for a grid of {grid}, received kernel "
                f"{self.kernel}"
            )
        sizes = []
        for size, kernel, stride, dilation, (before, after) in zip(
            grid, self.kernel, self.stride, self.dilation, self.padding, strict=True
        ):
            room = size + before + after - dilation * (kernel - 1) - 1
            if room < 0:
                raise InterbasisError(
                    f"expected a grid at least as large as the window, received {grid} for kernel "
                    f"{self.kernel} with dilation {self.dilation} and padding {self.padding}"
                )
            limit = {"reflect": size - 1, "circular": size}.get(self.mode)
            if limit is not None and max(before, after) > limit:
                raise InterbasisError(
                    f"expected {self.mode} padding of at most {limit} for a grid of {grid}, received "
                    f"{self.padding}"
                )
            count = (room + (stride - 1 if self.ceil else 0)) // stride + 1
            if self.ceil and (count - 1) * stride >= size + before:  # it would begin beyond the grid
                count -= 1
            sizes.append(count)
        return tuple(sizes)

    def pixels(self, grid: Grid) -> Tensor:  # int64 [S, K]
        """The position that every output reads at every offset; −1 where there is none."""
        target = self.target(grid)
        return combined([self._line(d, size, target[d]) for d, size in enumerate(grid)], grid)

    def _line(self, d: int, size: int, outputs: int) -> Tensor:  # [outputs, kernel]
        """Place that every output reads at every offset along one dimension; −1 where there is none."""
        starts = torch.arange(outputs) * self.stride[d] - self.padding[d][0]
        places = starts[:, None] + torch.arange(self.kernel[d]) * self.dilation[d]
        outside = (places < 0) | (places >= size)
        if self.mode == "zeros":
            return torch.where(outside, -1, places)
        if self.mode == "replicate":
            return places.clamp(0, size - 1)
        if self.mode == "circular":
            return places % size
        if self.mode == "reflect":
            turned = places.abs()
            return torch.where(turned >= size, 2 * (size - 1) - turned, turned)
        first = (~outside).int().argmax(1, keepdim=True)  # the first offset that exists
        return torch.where(outside, places.gather(1, first), places)

    def __str__(self) -> str:
        parts = ["×".join(map(str, self.kernel))]
        if set(self.stride) != {1}:
            parts.append(f"stride {'×'.join(map(str, self.stride))}")
        if set(self.dilation) != {1}:
            parts.append(f"dilation {'×'.join(map(str, self.dilation))}")
        if any(map(any, self.padding)):
            parts.append(f"padding {self.padding} {self.mode}")
        return ", ".join(parts)


def combined(lines: Sequence[Tensor], grid: Grid) -> Tensor:  # [S_d, K_d] each -> [S, K]
    """Positions from places along every dimension; −1 where one of them is."""
    result = torch.zeros((), dtype=torch.int64)
    for line, size in zip(lines, grid, strict=True):
        outer = result[..., None, None]
        result = torch.where((outer >= 0) & (line >= 0), outer * size + line, -1)
    order = [*range(0, 2 * len(grid), 2), *range(1, 2 * len(grid), 2)]
    return result.permute(order).reshape(math.prod(map(len, lines)), -1)


def _each(value: int | Sequence[Any], dims: int, name: str) -> Sequence[Any]:
    values = [value] * dims if isinstance(value, int) else list(value)
    if len(values) != dims:
        raise InterbasisError(f"expected {name} for {dims} dimensions, received {value}")
    return values


def _numbers(value: int | Sequence[int], dims: int, name: str) -> Grid:
    return tuple(int(number) for number in _each(value, dims, name))
