"""A whole build on a 3072-60-60-10 ReLU MLP with 50,000 rows: LIB against PCA, and peak memory with edges.

Real CIFAR-10 where ../shared has it, random rows of the same shape elsewhere. Every build runs in a process
of its own; times and memory are that process's.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import interbasis
from common import machine, peak_gigabytes, report
from interbasis.base.records import Basis

CIFAR = Path(__file__).parents[2] / "shared" / "data" / "cifar10" / "cifar10.npz"


def rows() -> torch.Tensor:
    if CIFAR.exists():
        images = np.load(CIFAR, allow_pickle=False)["x_train"]
        return torch.from_numpy(images.reshape(len(images), -1))
    return torch.randint(0, 256, (50_000, 3072), dtype=torch.uint8)


class Scaled(nn.Module):
    """Pixels to [−1, 1], a chunk at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 127.5 - 1


def one(basis: Basis, edges: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        Scaled(), nn.Linear(3072, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 10)
    )
    data = rows()
    before = peak_gigabytes()
    start = time.perf_counter()
    graph = interbasis.build(
        interbasis.from_torch(module), data, basis=basis, edge_method="gradient" if edges else None
    ).graph
    figures = {
        "seconds": time.perf_counter() - start,
        "peak": peak_gigabytes(),
        "before": before,
        "features": [layer.features for layer in graph.layers],
    } | {f"s {phase}": s for phase, s in graph.provenance.timings.items()}
    print(json.dumps(figures))


def child(basis: Basis, edges: bool) -> dict[str, float]:
    command = [sys.executable, __file__, basis, "edges" if edges else "bases"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    if len(sys.argv) == 3:
        basis: Any = sys.argv[1]
        return one(basis, sys.argv[2] == "edges")
    pca, lib, full = child("pca", False), child("lib", False), child("lib", True)
    report(
        "3072-60-60-10 MLP, 50,000 rows, float64",
        machine()
        | {
            "data": "CIFAR-10" if CIFAR.exists() else "random rows",
            "s PCA build, no edges": pca["seconds"],
            "s LIB build, no edges": lib["seconds"],
            "ratio LIB / PCA": lib["seconds"] / pca["seconds"],
            "s LIB build with edges": full["seconds"],
            "GB peak with edges": full["peak"],
            "GB before the build (libraries and data)": full["before"],
        }
        | {f"  LIB with edges: {k}": v for k, v in full.items() if k.startswith("s ")},
    )


if __name__ == "__main__":
    main()
