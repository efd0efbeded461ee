"""Dictionaries trained in several metrics: rise of the test loss when a layer is its reconstruction.

    python benchmarks/dictionaries.py MODEL-FOLDER --out FOLDER [--layers ln1.1,ln1.2] [--active 4,8]
        [--metrics raw,lib,root,both] [--seeds 5] [--features 512] [--steps 3000] [--windows 3600]

MODEL-FOLDER holds a language model with tokens_train.uint16 and tokens_test.uint16. Every job is a file of
FOLDER; the same command resumes, and several processes may work on one folder. ``--table`` prints results.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import interbasis
from interbasis.base.files import write_text_atomically
from interbasis.dictionaries.metrics import basis_gram, metric_matrix
from interbasis.dictionaries.scores import score
from interbasis.dictionaries.settings import MetricKind, TrainSettings
from interbasis.dictionaries.training import fit
from interbasis.graph.store import load, save

CONTEXT = 256
TEST_WINDOWS = 80
LIB_WINDOWS = 200


def windows(model: Path, part: str, count: int) -> Tensor:  # [count, CONTEXT]
    tokens = np.fromfile(model / f"tokens_{part}.uint16", np.uint16).astype(np.int64)
    return torch.tensor(tokens[: count * CONTEXT]).view(-1, CONTEXT)


class Study:
    """One model: its bases, the activations of its layers, and the jobs."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.out = options, Path(options.out)
        self.model = Path(options.model)
        self.network = interbasis.from_hf(str(self.model))
        self.train = windows(self.model, "train", options.windows)
        self.test = windows(self.model, "test", TEST_WINDOWS)
        (self.out / "jobs").mkdir(parents=True, exist_ok=True)
        self._held: tuple[str, Tensor, Tensor] | None = None

    def lib(self) -> interbasis.InteractionGraph:
        """LIB of all layers, built once."""
        folder = self.out / "lib"
        if not (folder / "config.json").is_file():
            run = interbasis.build(
                self.network, self.train[:LIB_WINDOWS], edge_method="none", norm_limit=0.0,
                jacobian_queries=32, progress=False, resume=folder,
            )  # fmt: skip
            save(run.graph, folder)
        return load(folder)

    def activations(self, layer: str) -> tuple[Tensor, Tensor]:  # [tokens, d], [d, d]
        """Activations of the stream that a layer's section reads, and their covariance."""
        if self._held is None or self._held[0] != layer:
            index, columns = self.place(layer)
            with torch.no_grad():
                x = torch.cat([
                    self.network.activations_at(index, part)[..., columns].flatten(0, 1).float()
                    for part in self.train.split(40)
                ])  # fmt: skip
            self._held = layer, x, torch.cov(x.T.double())
        return self._held[1:]

    def place(self, layer: str) -> tuple[int, slice]:
        index = self.network.layers.index(layer)
        return index, slice(*self.network.sections[index].columns_read)

    def run(self) -> None:
        graph = self.lib()
        for layer, active, seed, metric in self.jobs():
            file = self.out / "jobs" / f"{layer}-{active}-{metric}-{seed}.json"
            claim = file.with_suffix(".working")
            if file.exists() or not _claim(claim):
                continue
            try:
                write_text_atomically(file, json.dumps(self.job(graph, layer, active, seed, metric)) + "\n")
            finally:
                claim.unlink(missing_ok=True)

    def jobs(self) -> list[tuple[str, int, int, MetricKind]]:
        o = self.options
        return [
            (layer, active, seed, metric)
            for seed, layer, active, metric in itertools.product(
                range(o.seeds), o.layers.split(","), map(int, o.active.split(",")), o.metrics.split(",")
            )
        ]

    def job(
        self, graph: interbasis.InteractionGraph, layer: str, active: int, seed: int, metric: MetricKind
    ) -> dict[str, object]:
        index, columns = self.place(layer)
        x, covariance = self.activations(layer)
        matrix = metric_matrix(metric, basis_gram(graph.layers[index], columns), covariance)
        settings = TrainSettings(
            features=self.options.features, active=active, steps=self.options.steps, seed=seed
        )
        began = time.process_time()
        dictionary = fit(x, matrix, settings)
        seconds = time.process_time() - began
        scored = score(self.network, dictionary, self.test, layer=layer, norm_limit=0.0)
        return scored.model_dump() | {
            "layer": layer, "active": active, "metric": metric, "seed": seed, "seconds": round(seconds, 1),
            "l0": scored.active,
        }  # fmt: skip

    def table(self) -> None:
        rows = [json.loads(file.read_text()) for file in sorted((self.out / "jobs").glob("*.json"))]
        key = lambda row: (row["layer"], row["active"])  # noqa: E731
        for (layer, active), group in itertools.groupby(sorted(rows, key=key), key):
            rises: dict[str, list[float]] = {}
            for row in group:
                rises.setdefault(row["metric"], []).append(row["rise"])
            cells = [
                f"{metric} {np.mean(values):.3f} ± {np.std(values) / max(1, len(values) - 1) ** 0.5:.3f} "
                f"({len(values)})"
                for metric, values in rises.items()
            ]
            print(f"{layer} {active:>3}: " + "   ".join(cells))


def _claim(file: Path) -> bool:
    """Take a job that no running process has."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", required=True)
    parser.add_argument("--layers", default="ln1.1,ln1.2,ln1.3,ln1.4,mlp_in.1,mlp_in.3")
    parser.add_argument("--active", default="4,8,16,32")
    parser.add_argument("--metrics", default="raw,lib,root,both")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--windows", type=int, default=3600)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(options)
    if options.table:
        study.table()
    else:
        for stale in (study.out / "jobs").glob("*.working"):
            if time.time() - stale.stat().st_mtime > 3600:
                stale.unlink()
        study.run()


if __name__ == "__main__":
    main()
