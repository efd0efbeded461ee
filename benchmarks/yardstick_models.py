"""Rows of the yardstick on the models of the results, a case each, which the same command resumes.

    python benchmarks/yardstick_models.py OUT CASE… [--models FOLDER] [--data FOLDER]
        [--samples N] [--tests N] [--list]

OUT/CASE holds `yardstick.json` and, while it lasts, unfinished work. Cases are named like `modadd-3`,
`conv`, `cifar10-edges-0`, `tinystories-rank`; ``--list`` prints all of them with their settings. DATA has
the public models and data (default: `INTERBASIS_SHARED_DATA`), MODELS checkpoints of `interbasis train`:

    interbasis train modadd --seed N --out MODELS/modadd-seedN.safetensors
    interbasis train cifar10 --seed N --data cifar10:FILE --out MODELS/cifar10-seedN.safetensors

Times are processor seconds of one thread.
"""

import argparse
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from common import peak_gigabytes
from interbasis.analysis.yardstick import stage
from interbasis.analysis.yardstick.records import YardstickRequest
from interbasis.graph.named_models import first_samples, open_model

BLOCKS = ["ln1.1", "ln1.2", "ln1.3", "ln1.4"]
STREAM = ["ln1.0", *BLOCKS, "ln_final"]
MODADD_RANKS = [2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 64]


@dataclass(frozen=True)
class Case:
    """A model, its data and the rows that are measured."""

    model: str
    data: str | None = None
    tests: str | None = None
    twins: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


def cases(data: Path, models: Path) -> dict[str, Case]:
    """All cases by name; modular addition 0 and 1 are the paper's, 2 ships with interbasis."""
    modadd = [f"modadd:{data}/modadd/seed{seed}.safetensors" for seed in (0, 1)]
    modadd += ["modadd", *(f"modadd:{models}/modadd-seed{seed}.safetensors" for seed in (1, 2))]
    images = f"cifar10:{data}/cifar10/cifar10.npz"
    mlps = [f"mlp:{models}/cifar10-seed{seed}.safetensors" for seed in range(5)]
    tiny = data / "tinystories-gpt-280k"
    model = f"hf:{tiny}"
    tokens, tests = (
        f"tokens:{tiny}/tokens_{split}.uint16,context=256,part=all" for split in ("train", "test")
    )
    stream = {"layers": STREAM, "ranks": [8, 16, 24, 32, 48], "removed": [], "norm_limit": 0.0}
    few = {"jacobian_samples": 200, "jacobian_queries": 32}
    every = ["lib", "gib", "jib", "pca", "random", "neuron"]
    found = {
        f"modadd-{seed}": Case(
            name,
            settings={"methods": every, "ranks": MODADD_RANKS, "removed": [], "jacobian_samples": 1000},
        )
        for seed, name in enumerate(modadd)
    }
    found |= {
        f"modadd-edges-{seed}": Case(name, settings={"methods": ["lib", "pca"], "rows": ["edges"]})
        for seed, name in enumerate(modadd)
    }
    for seed, name in enumerate(mlps):
        others = tuple(mlps[:seed] + mlps[seed + 1 :])
        stable = {"methods": ["lib", "pca", "random", "neuron"], "rows": ["stability"]}
        found[f"cifar10-stability-{seed}"] = Case(name, images, images, others, stable)
        edges = {"methods": ["lib", "pca"], "rows": ["edges"]}
        found[f"cifar10-edges-{seed}"] = Case(name, images, images, settings=edges)
    conv = {"methods": ["lib", "pca", "random", "neuron"], "removed": [], "jacobian_samples": 500}
    found["conv"] = Case("cifar10-conv", images, images, settings=conv)
    main = ["lib", "pca", "slicing", "random", "neuron"]
    rank = stream | few | {"methods": main, "layers": BLOCKS, "ranks": [16, 24, 32, 48]}
    jib = stream | few | {"methods": ["lib", "jib"], "layers": BLOCKS}
    edges = few | {"methods": ["lib", "pca"], "rows": ["edges"], "edge_samples": 50, "norm_limit": 0.0}
    stable = stream | few | {"methods": ["lib", "pca", "random", "neuron"], "rows": ["stability"]}
    found |= {
        "tinystories-rank": Case(model, tokens, tests, settings=rank),
        "tinystories-jib": Case(model, tokens, tests, settings=jib),
        "tinystories-edges": Case(f"{model},blocks=2", tokens, tests, settings=edges),
        "tinystories-stability": Case(model, tokens, tests, settings=stable),
    }
    return found


def run(case: Case, folder: Path, samples: int | None, tests: int | None) -> float:
    """Measure a case, or what is left of it; processor seconds of this process."""
    named, begun = open_model(case.model), time.process_time()
    data, test_data = named.open_data(case.data), named.open_data(case.tests or case.data, "test")
    if samples is not None:
        data = first_samples(data, min(samples, len(data)))
    if tests is not None:
        test_data = first_samples(test_data, min(tests, len(test_data)))
    twins = {name: open_model(name).network for name in case.twins}
    request = YardstickRequest.validated(
        **{
            name: tuple(map(str, value)) if name in ("ranks", "removed") else value
            for name, value in case.settings.items()
        }
    )
    stage.run(named.network, data, test_data, request, twins=twins, model=case.model, folder=folder)
    return time.process_time() - begun


def main() -> None:
    """Run the cases that are named, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("case", nargs="*")
    parser.add_argument("--models", type=Path, default=Path("trained"))
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("INTERBASIS_SHARED_DATA", "../shared/data")
    )
    parser.add_argument("--samples", type=int, help="first samples that bases are fitted on; default: all")
    parser.add_argument("--tests", type=int, help="first test samples; default: all")
    parser.add_argument("--list", action="store_true", help="print the cases and their settings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = cases(options.data, options.models)
    if options.list:
        for name, case in known.items():
            print(name, case.model, case.settings)
    if unknown := [name for name in options.case if name not in known]:
        parser.error(f"expected cases out of {', '.join(known)}, received {', '.join(unknown)}")
    for name in options.case:
        seconds = run(known[name], options.out / name, options.samples, options.tests)
        print(f"{name}: {seconds:.0f} s of processor time, peak {peak_gigabytes():.2f} GB", flush=True)


if __name__ == "__main__":
    main()
