"""The residual network of CIFAR-10 from end to end: bases of all layers, edges, edges required in four bases.

    python benchmarks/cifar10_conv.py --data cifar10:PATH [--images 50000] [--edges 5000] [--test 1000]

Times are processor time of one thread, beside that of plain forward passes over the same images in the same
run; memory is the peak of the process.
"""

import argparse
import resource
import time
from dataclasses import replace
from pathlib import Path

import torch

import interbasis
from interbasis.ablation.search import edges_required
from interbasis.data.samples import Samples
from interbasis.network.network import Network
from interbasis.run.specs import first_of, open_data, open_model

BASES = ("lib", "pca", "neuron", "random")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--edges", type=int, default=5_000)
    parser.add_argument("--test", type=int, default=1_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bases", nargs="+", default=BASES, choices=BASES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    network = open_model("cifar10-conv").network
    data = first_of(open_data(arguments.data), arguments.images)
    edge_data = first_of(open_data(arguments.data), arguments.edges)
    test = first_of(open_data(arguments.data, "test"), arguments.test)
    forward = forward_seconds(network, data)
    report(arguments.out, f"One forward pass over {len(data):,} images: {forward:.1f} s of processor time.\n")
    report(
        arguments.out,
        "| basis | basis, s | in forward passes | edges, s | peak memory, GB | edges required |",
    )
    report(arguments.out, "|---|---|---|---|---|---|")
    for basis in arguments.bases:
        start = time.process_time()
        graph = interbasis.build(network, data, basis, edge_method=None, progress=False)
        fitted = time.process_time() - start
        start = time.process_time()
        measured = interbasis.edges(network, graph.layers, edge_data, dtype=graph.config.torch_dtype)
        edges = time.process_time() - start
        graph = replace(graph, edges=measured)
        counts = edges_required(network, graph, test, "accuracy")
        text = ", ".join(f"{one.source} {one.count:,} of {one.possible:,}" for one in counts)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        report(
            arguments.out,
            f"| {basis} | {fitted:.1f} | {fitted / forward:.2f} | {edges:.1f} | {peak:.2f} | {text} |",
        )


@torch.no_grad()
def forward_seconds(network: Network, data: Samples) -> float:
    """Processor time of plain passes through the network."""
    start = time.process_time()
    for inputs, _ in data:
        for some in inputs.split(256):
            network(some)
    return time.process_time() - start


def report(path: Path | None, line: str) -> None:
    print(line, flush=True)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
