"""Cost of `interbasis diff` beside a build of one model, and its error in float32.

    python benchmarks/differences.py MODEL-FOLDER TOKENS [--rounds 5] [--samples 8] [--context 256]

TOKENS is a file of uint16 tokens. The second model is the first with all weights changed. Every round times,
one after another and in processor seconds of one thread, statistics and Jacobians of a build without edges,
and the whole difference, both with all query positions of attention and with a quarter (the default of a
difference). Medians are reported. The error in float32 is the largest of any section's share, relative to its
value in float64.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

import interbasis
from interbasis.data.batches import Data
from interbasis.graph.named_models import open_model
from interbasis.network.network import Network

COST_CHANGE = 0.05
"""Relative change of the weights whose difference is timed."""
BASE = "statistics and Jacobians of one model"
CHANGES = (1e-2, 1e-3, 1e-4)
"""Relative changes whose error is measured."""


def changed(model: nn.Module, change: float) -> Network:
    """The network with every weight times 1 + change · noise; the module is left as it was."""
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + change * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    network = interbasis.from_hf(model).double()
    model.load_state_dict(before)
    return network


def processor_seconds(first: Network, second: Network, data: Data, context: int) -> dict[str, float]:
    seconds = {}
    for name, queries in ((BASE, None), ("the same, a quarter of the queries", context // 4)):
        run = interbasis.build(
            first, data, exact=queries is None, jacobian_queries=queries, edge_method="none", norm_limit=0.0,
            dtype="float64", progress=False,
        )  # fmt: skip
        timings = run.graph.provenance.processor_timings
        seconds[name] = timings["statistics"] + timings["Jacobians"]
    ways: dict[str, Any] = {"difference, all queries": "all", "difference, a quarter of the queries": None}
    for name, queries in ways.items():
        began = time.process_time()
        interbasis.diff(first, second, data, queries=queries, progress=False)
        seconds[name] = time.process_time() - began
    return seconds


def float32_errors(first: Network, second: Network, data: Data) -> dict[str, float]:
    double, single = (
        interbasis.diff(first, second, data, dtype=dtype, progress=False).record.sections
        for dtype in ("float64", "float32")
    )
    return {
        kind: max(
            abs(getattr(single[name], kind).value / getattr(section, kind).value - 1)
            for name, section in double.items()
            if section.changed
        )
        for kind in ("outputs", "jacobian")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = f"tokens:{options.tokens},samples={options.samples},context={options.context}"
    data = open_model(f"hf:{options.model}").open_data(spec)
    model = AutoModelForCausalLM.from_pretrained(options.model).eval()
    first = interbasis.from_hf(model).double()
    second = changed(model, COST_CHANGE)
    processor_seconds(first, second, data, options.context)  # first calls are slower
    rounds = [processor_seconds(first, second, data, options.context) for _ in range(options.rounds)]
    base = [row[BASE] for row in rounds]
    for name in rounds[0]:
        seconds = [row[name] for row in rounds]
        ratios = sorted(value / one for value, one in zip(seconds, base, strict=True))
        print(
            f"{name}: {statistics.median(seconds):.2f} s, {statistics.median(ratios):.2f} times "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )
    for change in CHANGES:
        errors = float32_errors(first, changed(model, change), data)
        print(f"float32, change {change:g}: " + ", ".join(f"{k} {v:.1e}" for k, v in errors.items()))


if __name__ == "__main__":
    main()
