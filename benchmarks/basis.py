"""LIB's M: closed forms against tuned backward passes, per 1,000 tokens.

python benchmarks/basis.py mlp         a 768–3072–768 GELU section
python benchmarks/basis.py attention   12 heads at width 768, T = 256: exact against one stochastic source
"""

import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from common import machine, report, seconds
from interbasis.fit.section_jacobian import SectionJacobian
from interbasis.network.cores import Attention, AttentionShape, Elementwise, PassCore
from interbasis.network.network import NodeLayer, Section
from reference import batched, fused, looped

WIDTH, HIDDEN, HEADS = 768, 3072, 12
DTYPE = torch.float32
NODES = NodeLayer("in", WIDTH + 1), NodeLayer("out", WIDTH + 1)


def gaussian(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=DTYPE) / math.sqrt(shape[-1])


def residual() -> Tensor:
    return torch.eye(WIDTH + 1, dtype=DTYPE)


def mlp() -> Section:
    write = torch.cat([torch.zeros(1, HIDDEN, dtype=DTYPE), gaussian(WIDTH, HIDDEN)])
    return Section(*NODES, residual(), gaussian(HIDDEN, WIDTH + 1), write, Elementwise(nn.GELU()))


def attention() -> Section:
    write = torch.cat([torch.zeros(1, WIDTH, dtype=DTYPE), gaussian(WIDTH, WIDTH)])
    read = 2 * gaussian(3 * WIDTH, WIDTH + 1)
    return Section(*NODES, residual(), read, write, Attention(AttentionShape(HEADS, WIDTH // HEADS)))


def activations(samples: int, positions: int) -> Tensor:
    f = torch.randn(samples, positions, WIDTH + 1, dtype=DTYPE)
    f[..., 0] = 1
    return f


def ours(section: Section, transform: Tensor, f: Tensor, chunk: int) -> Tensor:
    """M′ in float64 from sums over chunks of samples, with all of its linear algebra."""
    core, jacobian = section.core, SectionJacobian.of(section, transform.double())
    sums: dict[str, Tensor] = {}
    for some in f.split(chunk):
        u, outputs = some @ section.read.T, section.outputs(some)
        if isinstance(core, PassCore):
            batch = core.batch_sums(u, outputs, jacobian.metric.to(f.dtype), None)
        else:
            batch = core.statistics(u, outputs)
        sums = {name: sums.get(name, 0) + total.double() for name, total in batch.items()}
    tokens = f.shape[0] * f.shape[1]
    return jacobian.gram(core.moments(sums, jacobian.metric), tokens, tokens).K


def compare(
    name: str, section: Section, f: Tensor, chunk: int, few: tuple[int, int], flops: tuple[float, float]
) -> None:
    """``few`` samples of f are for autograd, which takes long; ``flops`` per token, ours and theirs."""
    transform = torch.linalg.qr(torch.randn(WIDTH + 1, WIDTH + 1, dtype=torch.float64))[0].to(DTYPE)
    figures: dict[str, object] = machine() | {"dtype": str(DTYPE)}

    def per_thousand(work: Callable[[Tensor], object], samples: int, repeat: int = 1) -> float:
        some = f[:samples]
        return 1000 * seconds(lambda: work(some), repeat) / (samples * f.shape[1])

    with torch.no_grad():
        mine = per_thousand(lambda some: ours(section, transform, some, chunk), len(f), repeat=2)
    tokens = len(f) * f.shape[1]
    figures |= {
        "tokens, ours": tokens,
        "s per 1,000 tokens, ours": mine,
        "GFLOP/s, ours": flops[0] / mine / 1e6,
    }
    theirs = {
        f"looped, {samples * f.shape[1]} tokens": per_thousand(
            lambda some: looped(fused(section), transform, some), samples
        )
        for samples in few
    } | {
        f"batched by {at_once}, {few[0] * f.shape[1]} tokens": per_thousand(
            lambda some, at_once=at_once: batched(section, transform, some, at_once), few[0]
        )
        for at_once in (4, 16)
    }
    figures |= {f"s per 1,000 tokens, {kind}": t for kind, t in theirs.items()}
    best = min(theirs.values())
    report(
        name,
        figures | {"GFLOP/s, fastest autograd": flops[1] / best / 1e6, "ratio to the fastest": best / mine},
    )


def main() -> None:
    torch.manual_seed(0)
    which = sys.argv[1] if len(sys.argv) > 1 else "all"
    d, m, T, H, h = WIDTH, HIDDEN, 256, HEADS, WIDTH // HEADS
    squares = 2 * d**2  # JᵀJ, per output feature
    if which in ("mlp", "all"):
        ours_flops = 2 * d * m + m**2  # reading, and the upper half of Σ d dᵀ
        flops = ours_flops, d * (4 * d * m + squares)
        compare("MLP basis, 768–3072–768 GELU", mlp(), activations(16384, 1), 2048, (128, 512), flops)
    if which in ("attention", "all"):
        # reading, keys, covariances (causal: half), and query pairs h ≤ g
        ours_flops = 6 * d**2 + H**2 * T * h + T * h**2 * H + 2 * H * (H + 1) * h**3
        flops = ours_flops, d * (8 * d**2 + 8 * T * d + squares)
        name = "attention basis, d = 768, 12 heads, T = 256"
        compare(name, attention(), activations(8, T), 1, (1, 2), flops)


if __name__ == "__main__":
    main()
