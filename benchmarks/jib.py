"""Edges required in LIB, JIB and PCA on trained networks.

python benchmarks/jib.py modadd CHECKPOINT...            # the paper's modular addition
python benchmarks/jib.py cifar10 CIFAR10.npz CHECKPOINT...
python benchmarks/jib.py tinystories FOLDER              # one block of the TinyStories GPT-2
"""

import sys
import time

import torch

import interbasis
from interbasis.ablation.search import edges_required

BASES = ("lib", "jib", "pca")


def report(name, network, training, test, **options):
    for basis in options.pop("bases", BASES):
        started = time.process_time()
        graph = interbasis.build(network, training, basis, progress=False)
        built = time.process_time() - started
        counts = edges_required(network, graph, test, stable=False, progress=False, **options)
        print(
            name, basis, {row.source: row.count for row in counts}, f"{built:.0f} s",
            f"{time.process_time() - started:.0f} s", flush=True,
        )  # fmt: skip


def main(kind: str, *names: str) -> None:
    torch.set_num_threads(1)
    if kind == "modadd":
        training, test = interbasis.modadd.split()
        for name in names:
            report(name, interbasis.modadd.load(name).double(), training.inputs, tuple(test))
    elif kind == "cifar10":
        from interbasis.data.cifar10 import cifar10

        training, test = (cifar10(names[0], split) for split in ("train", "test"))
        for name in names[1:]:
            report(name, interbasis.mlp.load(name), training, test)
    else:
        from interbasis.run.specs import load_data, load_model

        raise SystemExit(f"not here: {load_data} {load_model}")


if __name__ == "__main__":
    main(*sys.argv[1:])
