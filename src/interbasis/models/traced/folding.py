"""A finer grid's stream on a coarser grid: the pixels of a block side by side as channels.

A node layer has one grid. A U-Net carries its fine streams past the coarse ones. They are held there as
[n, coarse positions, block · channels], which loses nothing, and are read back by a stencil.
"""

from itertools import product
from math import prod

import torch
from torch import Tensor

from interbasis.models.traced.streams import Convolved, Stream
from interbasis.network.stencil import Stencil
from interbasis.network.window import Grid

MAX_FOLDED_CHANNELS = 4096


def folds(stream: Stream, grid: Grid) -> bool:
    """Whether a stream can be held on a coarser grid."""
    if not grid:
        return stream.positions * stream.channels <= MAX_FOLDED_CHANNELS
    if len(grid) != len(stream.grid) or any(f % c for f, c in zip(stream.grid, grid, strict=True)):
        return False
    return prod(stream.grid) // prod(grid) * stream.channels <= MAX_FOLDED_CHANNELS


def fold(stream: Stream, grid: Grid) -> tuple[Stream, Convolved]:
    """The stream on the coarser grid, and how the fine one is read from it."""
    blocks = _blocks(stream.grid, grid)  # [coarse positions, block]
    count, channels = blocks.shape[1], stream.channels
    ones = torch.ones(*blocks.shape, 1, dtype=torch.float64)
    identity = torch.eye(channels, dtype=torch.float64)
    together = torch.zeros(count * channels, count, channels, dtype=torch.float64)
    for k in range(count):
        together[k * channels : (k + 1) * channels, k] = identity
    folding = Convolved((stream,), Stencil(stream.grid, grid, blocks[..., None], ones), together)
    folded = Stream(grid, count * channels, folding, stream.place, stream.callers)
    coarse = torch.empty(stream.positions, dtype=torch.long)
    number = torch.empty(stream.positions, dtype=torch.long)
    coarse[blocks] = torch.arange(len(blocks))[:, None].expand_as(blocks)
    number[blocks] = torch.arange(count).expand_as(blocks)
    index = coarse[:, None, None].expand(-1, count, 1).clone()
    weight = (number[:, None] == torch.arange(count)).double()[..., None]
    apart = together.permute(2, 1, 0).contiguous()  # [channels, block, block · channels]
    return folded, Convolved((folded,), Stencil(grid, stream.grid, index, weight), apart)


def _blocks(fine: Grid, coarse: Grid) -> Tensor:  # [coarse positions, block]
    """The fine positions of every coarse one."""
    numbers = torch.arange(prod(fine))
    if not coarse:
        return numbers[None]
    numbers = numbers.view(fine)
    sizes = [f // c for f, c in zip(fine, coarse, strict=True)]
    offsets = product(*map(range, sizes))
    parts = [
        numbers[tuple(slice(o, None, s) for o, s in zip(offset, sizes, strict=True))] for offset in offsets
    ]
    return torch.stack([part.flatten() for part in parts], dim=1)
