"""The paper's setting from sampled positions: seconds per phase of one block of GPT2-small's shape.

    python benchmarks/sampled.py [THREADS] [exact]

Builds on 4 and on 12 sequences of 1,024 tokens, all tokens counted, edges in groups of whole sequences. The
difference of their times is what tokens cost; what is left is paid once per block. Hours are those of 12
blocks and 500 sequences, added up from these phases, with activations between the blocks on disk.
"""

import os
import sys
from dataclasses import replace
from typing import Any

import torch

from common import machine, report
from interbasis import build
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis_studies.bench.shapes import FULL

SAMPLED = {"jacobian_queries": 64, "edge_positions": 64}
FEW, MANY, BLOCKS, SEQUENCES = 4, 12, 12, 500
PHASES = ("statistics", "Jacobians", "bases", "edges")


def graph(sequences: int, settings: dict[str, Any]) -> InteractionGraph:
    shape = replace(FULL["GPT2-small"], samples=sequences)
    return build(
        shape.network(), shape.data(), edge_group="positions", edge_sources=1, dtype="float32", norm_limit=0,
        progress=False, **settings,
    ).graph  # fmt: skip


def figures(few: dict[str, float], many: dict[str, float]) -> dict[str, object]:
    """Seconds per 1,000 tokens by phase, seconds per block, hours of the whole."""
    positions = FULL["GPT2-small"].positions
    sequence = {phase: (many[phase] - few[phase]) / (MANY - FEW) for phase in PHASES}
    once = sum(few[phase] - FEW * sequence[phase] for phase in PHASES)
    result: dict[str, object] = {phase: 1000 / positions * sequence[phase] for phase in PHASES}
    result["all phases"] = 1000 / positions * sum(sequence.values())
    result["once per block"] = once
    result["hours of 12 blocks"] = BLOCKS * (SEQUENCES * sum(sequence.values()) + once) / 3600
    return result


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else os.cpu_count() or 1)
    settings = {} if "exact" in sys.argv else SAMPLED
    graph(1, settings)
    few, many = (graph(sequences, settings).provenance for sequences in (FEW, MANY))
    print(machine())
    report("processor seconds per 1,000 tokens", figures(few.processor_timings, many.processor_timings))
    report("seconds on the wall per 1,000 tokens", figures(few.timings, many.timings))
