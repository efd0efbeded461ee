"""Edges required in LIB, JIB and PCA on the paper's modular addition.

python benchmarks/jib.py CHECKPOINT...
"""

import sys
import time

import torch

import interbasis
from interbasis.analysis.ablation.search import edges_required


def main(*names: str) -> None:
    torch.set_num_threads(1)
    training, test = interbasis.modadd.split()
    for name in names:
        network = interbasis.modadd.load(name).double()
        for basis in ("lib", "jib", "pca"):
            started = time.process_time()
            graph = interbasis.build(network, training.inputs, basis=basis, progress=False).graph
            counts = edges_required(network, graph, tuple(test), stable=False, progress=False)
            seconds = time.process_time() - started
            print(name, basis, {row.source: row.count for row in counts}, f"{seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
