"""A small residual convolutional network: a stem, blocks that halve the grid, average pooling, a linear head.

    stem   relu(norm(conv 3×3))
    block  relu(norm(conv 3×3 (relu(norm(conv 3×3, stride 2)))) + norm(conv 1×1, stride 2))
    head   linear(mean over all pixels)

Batch norms are folded into the convolutions. Node layers are `stem` (pixels), then for each block
`blocks.K.conv1` and `blocks.K.conv2`, the latter with the shortcut beside the hidden channels, `pool`, `head`
and `output`. Checkpoints are safetensors of the module's state, with its widths as JSON in the metadata under
``architecture``.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from interbasis.base.errors import Explained, InterbasisError
from interbasis.models.matrices import changed_copy
from interbasis.models.mlp import read_checkpoint, write_checkpoint
from interbasis.network import stencil_section as stencils
from interbasis.network.cores import Elementwise
from interbasis.network.network import Network, NodeLayer
from interbasis.network.prefix import Prefix, with_constant
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import StencilSection, add_taps, kernel_taps, patch_matrix
from interbasis.network.window import Grid, SlidingWindow

FAMILY = "residual convolutional network"


class Pixels(Prefix):
    """Images [n, channels, grid…], or rows [n, channels · pixels], to [n, pixels, 1 + channels]."""

    def __init__(self, channels: int, grid: Grid, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.channels, self.grid = channels, grid
        self.like = nn.Buffer(torch.zeros((), dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        shape = (self.channels, *self.grid)
        if inputs.shape[1:] not in (shape, (math.prod(shape),)):
            raise InterbasisError(
                f"expected images of shape [samples, {', '.join(map(str, shape))}] or rows of "
                f"{math.prod(shape)} numbers, received {list(inputs.shape)}"
            )
        return with_constant(inputs.to(self.like.dtype).reshape(len(inputs), self.channels, -1).mT)


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, at half the resolution."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride=2, bias=False)
        self.norm3 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.norm3(self.shortcut(x)))


class Residual(nn.Module):
    """Residual network; it takes images [n, channels, size, size] or rows of the same numbers."""

    def __init__(
        self, channels: int = 3, size: int = 32, widths: tuple[int, ...] = (16, 32, 64), classes: int = 10
    ):
        super().__init__()
        self.channels, self.size, self.widths, self.classes = channels, size, tuple(widths), classes
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        self.blocks = nn.ModuleList(ResidualBlock(before, after) for before, after in pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), self.channels, self.size, self.size)
        x = torch.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


@torch.no_grad()
def network(module: Residual) -> Network:
    """Network of a module as it computes in evaluation mode."""
    module = deepcopy(module).eval()
    like = module.head.weight.detach()
    grid: Grid = (module.size, module.size)
    node = NodeLayer("stem", 1 + module.channels, grid=grid)
    first, *blocks = [f"blocks.{k}.conv1" for k in range(len(module.blocks))] + ["pool"]
    stem = fuse_conv_bn_eval(module.stem, module.norm)
    stencil = Stencil.sliding(grid, SlidingWindow.from_arguments((3, 3), padding=1))
    target = NodeLayer(first, 1 + stem.out_channels, grid=stencil.target)
    skip = patch_matrix(stencil, target.width, node.width, like)
    sections = [_rectified(node, target, skip, _convolution(stem, stencil, node.width), stencil)]
    for k, (block, name) in enumerate(zip(module.blocks, blocks, strict=True)):
        assert isinstance(block, ResidualBlock)
        sections += _block(block, sections[-1].target, f"blocks.{k}.conv2", name)
    pooled = Stencil.adaptive(sections[-1].stencil.target, (1, 1))
    head = NodeLayer("head", 1 + module.widths[-1], grid=(1, 1))
    sections.append(stencils.averaging_section(sections[-1].target, head, pooled, like))
    stencil = Stencil.flattened((1, 1))
    matrix = patch_matrix(stencil, 1 + module.classes, head.width, like)
    taps = stencils.flattened_taps(module.head.weight.detach(), module.widths[-1])
    add_taps(matrix, stencil, taps, 1, 1)
    matrix[0, 0], matrix[1:, 0] = 1, module.head.bias.detach()
    output = NodeLayer("output", 1 + module.classes, grid=())
    sections.append(stencils.linear_section(head, output, matrix, stencil))
    prefix = Pixels(module.channels, grid, like.dtype)
    return Network(
        prefix,
        tuple(sections),
        family=FAMILY,
        build_dtype="float32",
        remake=lambda change: network(changed_copy(module, change)),
    )


def _convolution(conv: nn.Conv2d, stencil: Stencil, width: int) -> Tensor:  # [c, 1 + K·width]
    """Matrix on patches of the first channels of a node layer of that width."""
    matrix = patch_matrix(stencil, conv.out_channels, width, conv.weight.detach())
    matrix[:, 0] = _bias(conv)
    add_taps(matrix, stencil, kernel_taps(conv.weight.detach()), 0, 1)
    return matrix


def _block(block: ResidualBlock, source: NodeLayer, middle: str, end: str) -> list[StencilSection]:
    """[relu(conv1 x); shortcut x], then relu(conv2 h + shortcut)."""
    assert source.grid is not None
    first = fuse_conv_bn_eval(block.conv1, block.norm1)
    second = fuse_conv_bn_eval(block.conv2, block.norm2)
    shortcut = fuse_conv_bn_eval(block.shortcut, block.norm3)
    width, like = first.out_channels, first.weight.detach()
    stencil = Stencil.sliding(source.grid, SlidingWindow.from_arguments((3, 3), stride=2, padding=1))
    stencil, where = stencil.with_taps(
        Stencil.sliding(source.grid, SlidingWindow.from_arguments((1, 1), stride=2))
    )
    between = NodeLayer(middle, 1 + 2 * width, grid=stencil.target)
    read = _convolution(first, stencil, source.width)
    skip = patch_matrix(stencil, between.width, source.width, like)
    add_taps(skip, stencil, kernel_taps(shortcut.weight.detach()), 1 + width, 1, where)
    skip[1 + width :, 0] = _bias(shortcut)
    sections = [_rectified(source, between, skip, read, stencil)]
    stencil = Stencil.sliding(stencil.target, SlidingWindow.from_arguments((3, 3), padding=1))
    stencil, centre = stencil.with_taps(Stencil.pointwise(stencil.source))
    target = NodeLayer(end, 1 + width, grid=stencil.target)
    read = _convolution(second, stencil, between.width)
    add_taps(read, stencil, torch.eye(width, dtype=like.dtype)[:, None], 0, 1 + width, centre)
    skip = patch_matrix(stencil, target.width, between.width, like)
    return [*sections, _rectified(between, target, skip, read, stencil)]


def _rectified(
    source: NodeLayer, target: NodeLayer, skip: Tensor, read: Tensor, stencil: Stencil
) -> StencilSection:
    skip[0, 0] = 1
    write = torch.eye(target.width, dtype=read.dtype)[:, 1 : 1 + len(read)]
    return StencilSection(source, target, skip, read, write, Elementwise(nn.ReLU()), stencil=stencil)


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias.detach()


def save(module: Residual, path: Path, data: str, training: Mapping[str, object]) -> Path:
    """Write a checkpoint that `conv:PATH` reads."""
    about = {"family": FAMILY, "channels": module.channels, "size": module.size, "widths": module.widths}
    about |= {"classes": module.classes, "data": data}
    return write_checkpoint(module, path, {"architecture": about, "training": dict(training)})


def load_module(path: str | Path) -> tuple[Residual, str]:
    """Load the module of a checkpoint, and the spec of the data it was trained on.

    Raises:
        InterbasisError: The file cannot be read, or its tensors do not match its architecture.
    """
    kind, remedy = f"a checkpoint of a {FAMILY}", "expected one that interbasis train cifar10-conv wrote"
    tensors, about = read_checkpoint(Path(path), FAMILY, kind, f"{{}} is not {kind} ({{}}); {remedy}")
    with Explained(f"{path} is not {kind}", ValueError, KeyError, TypeError, RuntimeError, remedy=remedy):
        module = Residual(about["channels"], about["size"], tuple(about["widths"]), about["classes"])
        module.load_state_dict(tensors)
    return module.eval(), str(about.get("data") or "")
