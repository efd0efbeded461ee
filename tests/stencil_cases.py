"""Sections that read stencils, for tests: random ones of any geometry, and small convolutional networks."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

from cases import normal
from interbasis.models.residual import Pixels, Residual, network
from interbasis.network.cores import Core, Elementwise
from interbasis.network.network import Network, NodeLayer
from interbasis.network.prefix import with_constant
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import StencilSection, add_taps, kernel_taps, patch_matrix
from interbasis.network.window import Grid, SlidingWindow

CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@dataclass(frozen=True)
class Geometry:
    """A convolution of 4 channels over a small grid, as a user writes it."""

    grid: Grid
    kernel: Grid
    stride: Grid
    dilation: Grid
    padding: Grid
    mode: Any
    groups: int

    @property
    def window(self) -> SlidingWindow:
        return SlidingWindow.from_arguments(self.kernel, self.stride, self.dilation, self.padding, self.mode)

    @property
    def convolution(self) -> Any:
        torch.manual_seed(math.prod(self.grid) + 7 * math.prod(self.kernel) + self.groups)
        return CONVOLUTIONS[len(self.grid)](
            4, 4, self.kernel, self.stride, self.padding, self.dilation, self.groups, padding_mode=self.mode
        ).double()

    @property
    def images(self) -> Tensor:
        return normal(3, 4, *self.grid, seed=len(self.grid)) + 0.2


EXAMPLE = Geometry((5, 6), (3, 2), (2, 2), (1, 1), (1, 0), "zeros", 2)


@st.composite
def geometries(draw: st.DrawFn, dims: tuple[int, ...] = (1, 2)) -> Geometry:
    """Every kernel, stride, dilation, padding and number of groups that fits the grid."""
    count = draw(st.sampled_from(dims))
    largest = {1: 9, 2: 6, 3: 3}[count]
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    sizes = []
    for _ in range(count):
        size = draw(st.integers(2, largest))
        kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        needed = max(0, -(-(dilation * (kernel - 1) + 1 - size) // 2))
        most = min(3, size - 1 if mode == "reflect" else size)
        assume(needed <= most)
        padding = draw(st.integers(needed, most))
        sizes.append((size, kernel, draw(st.integers(1, 3)), dilation, padding))
    grid, kernels, strides, dilations, paddings = zip(*sizes, strict=True)
    return Geometry(grid, kernels, strides, dilations, paddings, mode, draw(st.sampled_from([1, 2, 4])))


def shortcut_stencil(geometry: Geometry) -> tuple[Stencil, list[int]]:
    """The convolution's taps, with one more for a shortcut that reads pixel s·stride."""
    stencil = Stencil.sliding(geometry.grid, geometry.window)
    places = [
        (torch.arange(n) * step).clamp(max=size - 1)[:, None]
        for n, step, size in zip(stencil.target, geometry.stride, geometry.grid, strict=True)
    ]
    index = places[0]
    for place, size in zip(places[1:], geometry.grid[1:], strict=True):
        index = (index[:, None] * size + place).flatten(0, 1)
    own = replace(stencil, index=index[:, :, None], weight=torch.ones(len(index), 1, 1).double(), window=None)
    return stencil.with_taps(own)


def convolution_section(geometry: Geometry, core: Core | None = None, read_rows: int = 4) -> StencilSection:
    """F = P p + B · core(A p): a convolution, a random write, and a shortcut beside and on top of it."""
    stencil, where = shortcut_stencil(geometry)
    source, target = NodeLayer("a", 5, grid=geometry.grid), NodeLayer("b", 6, grid=stencil.target)
    conv, like = geometry.convolution, torch.zeros(0, dtype=torch.float64)
    read = patch_matrix(stencil, read_rows, 5, like)
    copies = read_rows // 4
    for k in range(copies):
        add_taps(read, stencil, kernel_taps(conv.weight.detach(), geometry.groups) * (1 + k), 4 * k, 1)
    read[:, 0] = conv.bias.detach().repeat(copies)
    skip = patch_matrix(stencil, 6, 5, like)
    add_taps(skip, stencil, normal(5, 1, 4, seed=5), 1, 1, where)
    skip[0, 0], skip[1:, 0] = 1, normal(5, seed=6)
    write = torch.cat([torch.zeros(1, 4), normal(5, 4, seed=7)]).double()
    return StencilSection(source, target, skip, read, write, core or Elementwise(nn.GELU()), stencil=stencil)


def network_of(section: StencilSection) -> Network:
    """It alone."""
    assert section.source.grid is not None
    return Network(Pixels(section.source.width - 1, section.source.grid, section.skip.dtype), (section,))


def as_activations(images: Tensor) -> Tensor:  # [n, c, grid…] -> [n, T, 1 + c]
    return with_constant(images.flatten(2).mT)


def small_residual(size: int = 8, samples: int = 24) -> tuple[Network, Residual, Tensor]:
    """A residual network with batch norms that have seen data, and images as rows."""
    torch.manual_seed(3)
    module = Residual(2, size, (3, 4, 5), 4).double()
    images = normal(samples, 2 * size * size, seed=4)
    module.train()
    for _ in range(5):
        module(images)
    return network(module.eval()), module, images
