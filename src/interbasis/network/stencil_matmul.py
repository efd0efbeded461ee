"""p ↦ M p for the patches p of a stencil, without making patches where there is a shorter way.

What several taps of a sliding window read is a convolution of PyTorch, in groups where M is block diagonal;
what one tap alone reads (residual streams, 1×1 convolutions) is a matrix product.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from interbasis.network.stencil import Stencil
from interbasis.network.structured_matmul import applier, index_range

Apply = Callable[[Tensor], Tensor]
CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def stencil_applier(stencil: Stencil, matrix: Tensor) -> Apply:  # M [c, 1 + K·d]; f [n, T, d] -> [n, S, c]
    """The quickest way to apply a matrix to patches; the constant is that of position 0."""
    bias = matrix[:, 0]
    taps = matrix[:, 1:].unflatten(1, (stencil.taps, -1))  # [c, K, d]
    used = (taps != 0).any(0)  # [K, d]
    several = used.sum(0) > 1  # by more than one tap
    steps: list[Apply] = []
    for k in (used & ~several).any(1).nonzero()[:, 0].tolist():
        steps.append(_one_tap(stencil, k, taps[:, k] * ~several))
    if several.any():
        steps.append(_several_taps(stencil, taps * several))

    def apply(f: Tensor) -> Tensor:
        result = f[:, :1, :1] * bias
        for step in steps:
            result = result + step(f)
        return result.expand(-1, stencil.positions, -1)

    return apply


def _one_tap(stencil: Stencil, k: int, matrix: Tensor) -> Apply:
    multiply = applier(matrix)
    return lambda f: multiply(stencil.tap(f, k))


def _several_taps(stencil: Stencil, taps: Tensor) -> Apply:  # [c, K, d]
    used = taps != 0
    left, right = index_range(used.any(0).any(0))
    top, bottom = index_range(used.any(1).any(1))
    block, below = taps[top:bottom, :, left:right], len(taps) - bottom
    inner = _convolution(stencil, block) if _is_window(stencil, used) else _gathered(stencil, block)

    def apply(f: Tensor) -> Tensor:
        result = inner(f[..., left:right])
        return functional.pad(result, (top, below)) if top or below else result

    return apply


def _is_window(stencil: Stencil, used: Tensor) -> bool:  # [c, K, d]
    """Whether a convolution of PyTorch reads all of these taps."""
    window = stencil.window
    if window is None or len(window.kernel) not in CONVOLUTIONS:
        return False
    return not used[:, math.prod(window.kernel) :].any()


def _convolution(stencil: Stencil, block: Tensor) -> Apply:  # [rows, K, columns]
    window = stencil.window
    assert window is not None
    dims, grid = len(window.kernel), stencil.source
    groups = _groups(block)
    size = block.shape[2] // groups
    within = torch.arange(len(block)) * groups // len(block) * size  # where a row's own columns begin
    columns = within[:, None] + torch.arange(size)
    grouped = block.gather(2, columns[:, None].expand(-1, block.shape[1], -1).to(block.device))
    # [rows, columns / groups, kernel…]
    weight = grouped[:, : math.prod(window.kernel)].mT.unflatten(2, window.kernel).contiguous()
    same = window.mode == "zeros" and all(before == after for before, after in window.padding)
    pads = [pad for pair in reversed(window.padding) for pad in pair]
    mode = "constant" if window.mode == "zeros" else window.mode
    convolve = CONVOLUTIONS[dims]

    def apply(f: Tensor) -> Tensor:
        x = f.unflatten(1, grid).movedim(-1, 1)
        if not same:
            x = functional.pad(x, pads, mode)
        padding = tuple(before for before, _ in window.padding) if same else 0
        y = convolve(x, weight, None, window.stride, padding, window.dilation, groups)
        return y.movedim(1, -1).flatten(1, dims)

    return apply


def _groups(block: Tensor) -> int:  # [rows, K, columns]
    """Number of equal diagonal blocks that a matrix falls into."""
    filled = (block != 0).any(1)  # [rows, columns]
    rows, columns = filled.shape
    for groups in sorted(
        (g for g in range(2, min(rows, columns) + 1) if rows % g == columns % g == 0), reverse=True
    ):
        number = torch.arange(rows)[:, None] * groups // rows == torch.arange(columns) * groups // columns
        if not (filled & ~number.to(filled.device)).any():
            return groups
    return 1


def _gathered(stencil: Stencil, block: Tensor) -> Apply:  # [rows, K, columns]
    if stencil.positions == 1:
        flat = block.flatten(1)
        return lambda f: stencil.patches(f).flatten(2) @ flat.T
    taps = (block != 0).any(2).any(0).nonzero()[:, 0].tolist()

    def apply(f: Tensor) -> Tensor:
        result = f.new_zeros(len(f), stencil.positions, len(block))
        for k in taps:
            result = result + stencil.tap(f, k) @ block[:, k].T
        return result

    return apply
