"""Experts in closed form against automatic differentiation, in one run: a block of OLMoE's kind.

    python benchmarks/experts.py                                 OLMoE's widths, 16,384 tokens; half an hour
    python benchmarks/experts.py --width 512 --hidden 256        a quarter of them; minutes

Random weights, 64 experts of which 8 are chosen. Closed forms run on all tokens; automatic differentiation on
``--reference-tokens`` of them, from which its time per token is taken. Times are those of the processor.
Both sides compute the same quantities, and they are compared on the first tokens: the Jacobian Gram, sums of
attributions with signs over a group of tokens (one number per edge, as builds estimate edges), and the exact
squares of attributions token by token.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
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
    sizes = {"width": 2048, "hidden": 1024, "experts": 64, "chosen": 8, "tokens": 16_384}
    for name, value in (sizes | {"group": 512, "reference_tokens": 16}).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument(
        "--only", choices=("basis", "edges", "exact_edges"), help="one of the three quantities"
    )
    asked = parser.parse_args()
    core = mixture(asked.width, asked.hidden, asked.experts, asked.chosen)
    general = General(lambda u: core(u, slice(0, u.shape[1])), "experts", mixes_positions=False)
    u = torch.randn(asked.tokens, 1, 1 + asked.width, generator=torch.Generator().manual_seed(1))
    u[..., 0] = 1
    read, metric, gradient = torch.eye(1 + asked.width), torch.eye(asked.width), rule("gradient")

    def basis(side: Experts | General, inputs: Tensor) -> Tensor:
        return side.batch_sums(inputs, slice(0, 1), metric, None)["gram"]

    def signed_edges(side: Experts | General, inputs: Tensor) -> Tensor:
        """Squares of sums with signs over groups, summed."""
        total = torch.zeros(asked.width, 1 + asked.width)
        for start in range(0, len(inputs), asked.group):
            part = inputs[start : start + asked.group]
            signs = into_groups(1.0 - 2 * (torch.arange(len(part)) % 3 == 0)[:, None], len(part))
            total += side.signed_attributions(part, part, read, slice(0, 1), gradient, signs)[:, 0].square()
        return total

    def exact_edges(side: Experts | General, inputs: Tensor) -> Tensor:
        return side.attributions(inputs, inputs, read, slice(0, 1), gradient).square().sum(1)

    report: dict[str, Any] = dict(vars(asked))
    few = u[: asked.reference_tokens]
    for name, work, inputs in (
        ("basis", basis, u), ("edges", signed_edges, u), ("exact_edges", exact_edges, few),
    ):  # fmt: skip
        if asked.only not in (None, name):
            continue
        reference, expected = seconds(partial(work, general, few))
        difference = (work(core, few) - expected).norm() / expected.norm()
        spent, _ = seconds(partial(work, core, inputs))
        by_token = spent / len(inputs), reference / len(few)
        report[name] = {
            "tokens": len(inputs), "seconds_per_token": by_token[0],
            "reference_seconds_per_token": by_token[1], "ratio": by_token[1] / by_token[0],
            "relative_difference": float(difference),
        }  # fmt: skip
        print(name, report[name], file=sys.stderr, flush=True)
    report["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
