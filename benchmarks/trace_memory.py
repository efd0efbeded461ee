"""Processor time and peak memory of a trace, for GPT2-small's shape with random weights.

    python benchmarks/trace_memory.py --tokens 1000

Bases are random rotations of every node layer, so that no feature is dropped and none is sparse.
"""

import argparse
import json
import resource
import time
from dataclasses import replace

import torch
from torch import Tensor

import interbasis
from interbasis.analysis.traces.records import TraceSettings
from interbasis.analysis.traces.trace import trace as trace_inputs
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.network import NodeLayer

ROTATED = 256
"""Coordinates that are rotated together: enough to mix all heads, quick to make."""


def rotation(width: int) -> Tensor:
    blocks = [min(ROTATED, width - start) for start in range(0, width, ROTATED)]
    return torch.block_diag(*(torch.linalg.qr(torch.randn(n, n))[0] for n in blocks))


def basis(node: NodeLayer) -> LayerBasis:
    inner = rotation(node.width - 1)[:, torch.randperm(node.width - 1)]
    transform = torch.block_diag(torch.ones(1, 1), inner)
    return LayerBasis(node.name, transform, transform.T.contiguous())


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--max-nodes", type=int, default=64)
    parser.add_argument("--method", default="exact")
    options = parser.parse_args()
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    network = interbasis.from_hf(GPT2LMHeadModel(GPT2Config()).eval())
    tokens = torch.randint(0, 50257, (options.tokens,))
    graph = interbasis.build(
        network, tokens[None, :8], basis="neuron", edge_method="none", dtype="float32"
    ).graph
    graph = replace(graph, layers=[basis(node) for node in network.nodes])
    before, start = peak_megabytes(), time.process_time()
    settings = TraceSettings(method=options.method, max_nodes=options.max_nodes, effect_points=0, checks=0)
    trace = trace_inputs(network, graph, tokens, settings=settings)
    figures = {
        "tokens": options.tokens,
        "processor_seconds": round(time.process_time() - start, 1),
        "peak_megabytes_before": round(before),
        "peak_megabytes": round(peak_megabytes()),
        "nodes": len(trace.nodes),
        "edges": len(trace.edges),
        "coverage": round(trace.scores.coverage, 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
