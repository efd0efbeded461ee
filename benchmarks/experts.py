"""Experts in closed form against automatic differentiation, in one run: a block of OLMoE's kind.

    python benchmarks/experts.py                                   a quarter of OLMoE's widths, 10,240 tokens
    python benchmarks/experts.py --width 2048 --hidden 1024        OLMoE's own; takes an hour or more

Random weights, 64 experts of which 8 are chosen. Closed forms run on all tokens; automatic differentiation on
``--reference-tokens`` of them, from which its time per token is taken. Times are those of the processor.
The first tokens are compared, too: both must give the same sums.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from interbasis.network.cores import Expert, Experts, Gated, General, Router
from interbasis.network.cores.core import into_groups
from interbasis.numerics.integration import rule


def mixture(width: int, hidden: int, experts: int, chosen: int) -> Experts:
    """Experts without biases, whose weights are a softmax over all scores, as OLMoE's are."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    def read(rows: int) -> Tensor:
        return torch.nn.functional.pad(normal(rows, width), (1, 0))

    core = Gated(nn.SiLU())
    router = Router(4 * read(experts), experts, chosen, normalised=False)
    parts = [
        Expert(read(2 * hidden), core, normal(width, hidden), torch.zeros(width)) for _ in range(experts)
    ]
    return Experts(router, parts)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of a call, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {"width": 512, "hidden": 256, "experts": 64, "chosen": 8, "tokens": 10_240}
    for name, value in (sizes | {"group": 512, "reference_tokens": 32}).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    asked = parser.parse_args()
    core = mixture(asked.width, asked.hidden, asked.experts, asked.chosen)
    general = General(lambda u: core(u, slice(0, u.shape[1])), "experts", mixes_positions=False)
    u = torch.randn(asked.tokens, 1, 1 + asked.width, generator=torch.Generator().manual_seed(1))
    u[..., 0] = 1
    one, few = slice(0, 1), u[: asked.reference_tokens]
    metric = torch.eye(asked.width)
    found: dict[str, float] = {}
    found["basis"], _ = seconds(lambda: core.batch_sums(u, one, metric, None))
    reference, expected = seconds(lambda: general.batch_sums(few, one, metric, None))
    error = (core.batch_sums(few, one, metric, None)["gram"] - expected["gram"]).norm() / expected[
        "gram"
    ].norm()
    read, gradient = torch.eye(1 + asked.width), rule("gradient")

    def edges() -> Tensor:
        """Signed sums over groups, squared: one number per edge, as an estimate of edges takes them."""
        total = torch.zeros(asked.width, 1 + asked.width)
        for start in range(0, len(u), asked.group):
            part = u[start : start + asked.group]
            signs = into_groups(torch.randn(len(part), 1).sign(), len(part))
            total += core.signed_attributions(part, part, read, one, gradient, signs)[:, 0].square()
        return total

    found["edges"], _ = seconds(edges)
    edge_reference, _ = seconds(lambda: general.attributions(few, few, read, one, gradient).square().sum(1))
    scale = asked.tokens / asked.reference_tokens
    report = vars(asked) | {
        "relative_difference": float(error),
        "basis_seconds": found["basis"], "basis_ratio": reference * scale / found["basis"],
        "edges_seconds": found["edges"], "edges_ratio": edge_reference * scale / found["edges"],
    }  # fmt: skip
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
