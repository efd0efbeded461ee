"""LIB's M of a convolution: the closed form against backward passes, in processor time of one thread.

The section is the first half of a residual block, x ↦ [relu(conv 3×3 x); x], 64 channels on 32 × 32 pixels,
into 128 features. The usual way takes one backward pass per feature, with one random sign per output
position, all at once or one after the other, whichever is faster: an estimate, where the closed form is
exact. The exact sum by backward passes takes 1,024 times as many.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from common import machine, report
from interbasis.network.cores import Elementwise
from interbasis.network.network import NodeLayer
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import StencilSection, add_taps, kernel_taps, one_tap, patch_matrix
from interbasis.network.window import SlidingWindow

CHANNELS, GRID = 64, (32, 32)


def block() -> StencilSection:
    stencil = Stencil.sliding(GRID, SlidingWindow.from_arguments((3, 3), padding=1))
    stencil, centre = stencil.with_taps(Stencil.pointwise(GRID))
    weight = nn.Conv2d(CHANNELS, CHANNELS, 3).weight.detach()
    source, target = NodeLayer("x", 1 + CHANNELS, grid=GRID), NodeLayer("hx", 1 + 2 * CHANNELS, grid=GRID)
    read = patch_matrix(stencil, CHANNELS, source.width, weight)
    add_taps(read, stencil, kernel_taps(weight), 0, 1)
    skip = patch_matrix(stencil, target.width, source.width, weight)
    skip[0, 0] = 1
    add_taps(skip, stencil, one_tap(torch.eye(CHANNELS)), 1 + CHANNELS, 1, centre)
    write = torch.eye(target.width)[:, 1 : 1 + CHANNELS]
    return StencilSection(source, target, skip, read, write, Elementwise(nn.ReLU()), stencil=stencil)


@torch.no_grad()
def ours(section: StencilSection, transform: Tensor, f: Tensor) -> Tensor:
    """M′, with all of its linear algebra."""
    jacobian = section.jacobian(transform.double())
    sums: dict[str, Tensor] = {}
    for some in f.split(16):
        batch = section.statistics(section.read_outs(some).flatten(0, 1))
        sums = {name: sums.get(name, 0) + total.double() for name, total in batch.items()}
    outputs, inputs = len(f) * section.stencil.positions, f.shape[0] * f.shape[1]
    return jacobian.gram_from_sums(sums, jacobian.metric, outputs, inputs).K


def theirs(batched: bool, section: StencilSection, transform: Tensor, f: Tensor) -> Tensor:
    """An estimate of M′ by a backward pass per feature, all of one image at once or one after the other."""
    total = torch.zeros(f.shape[2], f.shape[2], dtype=torch.float64)
    for some in f.split(1 if batched else len(f)):
        x = some.detach().requires_grad_()
        output = section(x)
        signs = torch.randint(0, 2, output.shape[:2]) * 2.0 - 1
        cotangents = transform[:, None, None, :] * signs[..., None]  # [r, n, S, d]
        for part in [cotangents] if batched else cotangents.split(1):
            grads = part if batched else part[0]
            (rows,) = torch.autograd.grad(output, x, grads, retain_graph=True, is_grads_batched=batched)
            flat = rows.reshape(-1, f.shape[2])
            total += (flat.T @ flat).double()
    return (total / (f.shape[0] * f.shape[1]))[1:, 1:]


def per_image(work: Callable[[Tensor], Tensor], f: Tensor, repeat: int = 3) -> tuple[float, Tensor]:
    """Seconds of processor time per image, the best of some, and the result."""
    best, result = float("inf"), f
    for _ in range(repeat):
        start = time.process_time()
        result = work(f)
        best = min(best, (time.process_time() - start) / len(f))
    return best, result


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    section = block()
    transform = torch.linalg.qr(torch.randn(1 + 2 * CHANNELS, 1 + 2 * CHANNELS))[0][1:]
    f = torch.randn(64, GRID[0] * GRID[1], 1 + CHANNELS)
    f[..., 0] = 1
    forward, _ = per_image(torch.no_grad()(section), f[:16])
    closed, exact = per_image(partial(ours, section, transform), f)
    batched, _ = per_image(partial(theirs, True, section, transform), f[:2], repeat=2)
    looped, estimate = per_image(partial(theirs, False, section, transform), f[:4], repeat=2)
    backward, few = min(batched, looped), ours(section, transform, f[:4])
    figures: dict[str, object] = machine() | {
        "forward pass, ms per image": 1e3 * forward,
        "closed form, exact, ms per image": 1e3 * closed,
        "backward passes at once, one sign, ms per image": 1e3 * batched,
        "backward passes in a row, one sign, ms per image": 1e3 * looped,
        "ratio": backward / closed,
        "closed form in forward passes": closed / forward,
        "error of the estimate (4 images)": ((estimate - few).norm() / few.norm()).item(),
        "features": len(exact),
    }
    report("convolution", figures)


if __name__ == "__main__":
    main()
