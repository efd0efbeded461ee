"""Dictionaries trained in several metrics: rise of the test loss when a layer is its reconstruction.

    python benchmarks/dictionaries.py MODEL-FOLDER --out FOLDER [--layers ln1.1,ln1.2] [--active 4,8]
        [--metrics raw,lib,root,both] [--seeds 5] [--features 512] [--steps 3000] [--windows 3600]
        [--control shuffled|redrawn] [--keep]

MODEL-FOLDER holds a language model with tokens_train.uint16 and tokens_test.uint16. Every job is a file of
FOLDER; the same command resumes, and several processes may work on one folder. Jobs that
results/dictionaries.json holds are done; ``--collect`` adds those of FOLDER to it, ``--table`` prints all.
``--keep`` stores the dictionaries, ``--directions`` prints what the leading directions of LIB's metric are,
``--positions`` how much of the variance is the position.
Metrics that end in -centred: the mean of every position is subtracted from the activations first.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import interbasis
from interbasis.analysis.ablation.controls import reinitialised, shuffled
from interbasis.base.files import write_text_atomically
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.metrics import basis_gram, metric_matrix
from interbasis.dictionaries.sae_lens import save as save_dictionary
from interbasis.dictionaries.settings import TrainSettings
from interbasis.dictionaries.training import fit
from interbasis.graph.store import load, save
from interbasis.network.network import Network
from interbasis.network.replacement import replaced_output

CONTEXT = 256
TEST_WINDOWS = 80
LIB_WINDOWS = 200
RESULTS = Path(__file__).parent / "results" / "dictionaries.json"
"""Jobs that are done, of earlier sessions too."""
IDENTITY = ("model", "layer", "active", "metric", "seed", "features", "steps")
KEPT = (
    *IDENTITY,
    "loss",
    "rise",
    "mean_loss",
    "explained",
    "dead",
    "l0",
    "seconds",
    "rises_without",
    "dense",
)
LEADING = (1, 4, 16)
"""Numbers of leading directions of LIB's metric whose share in the rise of the loss is found."""
CENTRED = "-centred"
"""Ending of a metric: activations have the mean of their position subtracted."""
DENSE = 0.5
"""Share of the tokens above which a feature counts as dense."""


def windows(model: Path, part: str, count: int) -> Tensor:  # [count, CONTEXT]
    tokens = np.fromfile(model / f"tokens_{part}.uint16", np.uint16).astype(np.int64)
    return torch.tensor(tokens[: count * CONTEXT]).view(-1, CONTEXT)


class Study:
    """One model: its bases, the activations of its layers, and the jobs."""

    norm_limit = 0.0
    lib_queries = 32

    def __init__(self, options: argparse.Namespace):
        self.options, self.out = options, Path(options.out)
        self.model = Path(options.model)
        self.network = self.changed(interbasis.from_hf(str(self.model), blocks=options.blocks))
        (self.out / "jobs").mkdir(parents=True, exist_ok=True)
        self.held: tuple[str, Tensor, Tensor] | None = None
        self.load()

    def load(self) -> None:
        """Windows to train on, to test on, and to build LIB on."""
        self.train = windows(self.model, "train", self.options.windows)
        self.test = windows(self.model, "test", TEST_WINDOWS)
        self.lib_data = self.train[:LIB_WINDOWS]

    def changed(self, network: Network) -> Network:
        """The network, or one with its weights shuffled or redrawn."""
        return {"shuffled": shuffled, "redrawn": reinitialised}.get(self.options.control, lambda n: n)(
            network
        )

    def lib(self) -> interbasis.InteractionGraph:
        """LIB of all layers, built once."""
        folder = self.out / "lib"
        if not (folder / "config.json").is_file():
            run = interbasis.build(
                self.network, self.lib_data, edge_method="none", norm_limit=self.norm_limit,
                jacobian_queries=self.lib_queries, progress=False, resume=folder,
            )  # fmt: skip
            save(run.graph, folder)
        return load(folder)

    def activations(self, layer: str) -> tuple[Tensor, Tensor]:  # [tokens, d], [d, d]
        """Activations of the stream that a layer's section reads, and their covariance."""
        if self.held is None or self.held[0] != layer:
            file = self.out / f"{layer}.npy"
            if not file.exists():
                index, columns = self.place(layer)
                with torch.no_grad():
                    parts = [
                        self.network.activations_at(index, part)[..., columns].flatten(0, 1).float()
                        for part in self.train.split(40)
                    ]
                np.save(file, torch.cat(parts).numpy())
            x = torch.from_numpy(np.load(file))
            self.held = layer, x, torch.cov(x.T.double())
        return self.held[1:]

    def place(self, layer: str) -> tuple[int, slice]:
        index = self.network.layers.index(layer)
        return index, slice(*self.network.sections[index].columns_read)

    def run(self) -> None:
        done = {identity(row) for row in read_results()}
        for job in self.jobs():
            file = self.out / "jobs" / f"{file_name(job)}.json"
            claim = file.with_suffix(".working")
            if identity(job) in done or file.exists() or not claim_job(claim):
                continue
            try:
                write_text_atomically(file, json.dumps(job | self.result(job)) + "\n")
            finally:
                claim.unlink(missing_ok=True)

    def jobs(self) -> list[dict[str, Any]]:
        o = self.options
        name = o.name if o.control == "none" else f"{o.name}, {o.control}"
        return [
            dict(zip(IDENTITY, (name, layer, active, metric, seed, o.features, o.steps), strict=True))
            for seed, active, layer, metric in itertools.product(
                range(o.seeds), map(int, o.active.split(",")), o.layers.split(","), o.metrics.split(",")
            )
        ]

    def result(self, job: dict[str, Any]) -> dict[str, object]:
        layer = job["layer"]
        index, columns = self.place(layer)
        x, covariance = self.activations(layer)
        metric = job["metric"].removesuffix(CENTRED)
        offset = torch.zeros(CONTEXT, x.shape[1])
        if metric != job["metric"]:
            offset = x.view(-1, *offset.shape).mean(0) - x.mean(0)
            x = (x.view(-1, *offset.shape) - offset).flatten(0, 1)
            covariance = torch.cov(x.T.double())
        gram = basis_gram(self.lib().layers[index], columns)
        settings = TrainSettings(**{key: job[key] for key in ("features", "active", "steps", "seed")})
        began = time.process_time()
        dictionary = fit(x, metric_matrix(metric, gram, covariance), settings)
        seconds = time.process_time() - began
        if self.options.keep:
            save_dictionary(replace(dictionary, hook=layer), self.out / "kept" / file_name(job))
        often = (dictionary.encode(x[:: max(1, len(x) // 2**14)]) > 0).double().mean(0)
        return self.scores(layer, dictionary, offset, gram) | {
            "seconds": round(seconds, 1), "dense": int((often > DENSE).sum()),
        }  # fmt: skip

    def scores(self, layer: str, dictionary: Dictionary, offset: Tensor, gram: Tensor) -> dict[str, object]:
        """Scores of a dictionary of x − offset, [T, d], and the rise without errors in leading directions."""

        def error(x: Tensor) -> Tensor:
            return dictionary.reconstruct(x - offset) + offset - x

        def remaining(V: Tensor, x: Tensor) -> Tensor:
            return error(x) - error(x) @ (V @ V.T)

        index, columns = self.place(layer)
        with torch.no_grad():
            x = self.network.activations_at(index, self.test)[..., columns]
            active, errors = dictionary.encode(x - offset).flatten(0, 1) > 0, error(x)
            loss = self.loss(layer, torch.zeros_like)
            rise = self.loss(layer, error) - loss
            without = {
                count: round(self.loss(layer, partial(remaining, V)) - loss, 5)
                for count, V in leading_directions(gram).items()
            }
        unexplained = errors.square().sum() / (x - x.mean((0, 1))).square().sum()
        return {
            "loss": loss, "rise": rise, "explained": 1 - unexplained.item(), "rises_without": without,
            "dead": (~active.any(0)).double().mean().item(), "l0": active.sum(1).double().mean().item(),
        }  # fmt: skip

    @torch.no_grad()
    def directions(self) -> None:
        """Print what the leading direction of LIB's metric is, layer by layer."""
        for layer in self.options.layers.split(","):
            index, columns = self.place(layer)
            x = self.network.activations_at(index, self.test)[..., columns].double()
            gram = basis_gram(self.lib().layers[index], columns)
            covariance = torch.cov(x.flatten(0, 1).T)
            values, vectors = torch.linalg.eigh(gram)
            v = vectors[:, -1]
            along = x @ v  # [windows, positions]
            print(
                f"{layer}: leading direction {values[-1] / values.sum():.3f} of the metric, "
                f"{v @ covariance @ v / covariance.trace():.3f} of the variance, "
                f"{along.mean(0).var() / along.var():.2f} of that by position"
            )

    @torch.no_grad()
    def positions(self) -> None:
        """Print the share of the variance that lies between positions, without bias, from the ninth on."""
        for layer in self.options.layers.split(","):
            index, columns = self.place(layer)
            parts = [self.network.activations_at(index, part)[:, 8:, columns] for part in self.test.split(10)]
            x = torch.cat(parts).double()  # [windows, positions, d]
            size = x.norm(dim=-1, keepdim=True)
            counts = (size <= (self.norm_limit or torch.inf) * size.median()).double()
            x = (x - (x * counts).sum((0, 1)) / counts.sum()) * counts
            within = x - counts * x.sum(0) / counts.sum(0).clamp_min(1)
            variance = within.square().sum() / (counts.sum() - counts.shape[1])
            print(
                f"{layer}: {1 - variance / (x.square().sum() / counts.sum()):.4f} of the variance by position"
            )

    def loss(self, layer: str, error: Callable[[Tensor], Tensor]) -> float:
        """Test loss with an error added to a stream, a function of the stream."""
        index, columns = self.place(layer)
        total = 0.0
        for tokens in self.test.split(20):
            f = self.network.activations_at(index, tokens)
            f[..., columns] += error(f[..., columns])
            outputs = replaced_output(self.network, index, f, tokens, {})[:, :-1]
            total += torch.nn.functional.cross_entropy(
                outputs.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum"
            ).item()
        return total / self.test[:, 1:].numel()


def leading_directions(gram: Tensor) -> dict[int, Tensor]:  # [d, d] -> [d, r]
    vectors = torch.linalg.eigh(gram).eigenvectors.flip(1)
    return {count: vectors[:, :count].float() for count in LEADING}


def identity(job: dict[str, Any]) -> tuple[object, ...]:
    return tuple(job[key] for key in IDENTITY)


def file_name(job: dict[str, Any]) -> str:
    return "-".join(str(job[key]) for key in IDENTITY[1:])


def read_results() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def collect(folder: Path) -> None:
    """Add the jobs of a folder to those that are done, a line each."""
    rows = {identity(row): row for row in read_results()}
    for file in (folder / "jobs").glob("*.json"):
        row = json.loads(file.read_text())
        row = {"model": "tinystories-gpt", "features": 512, "steps": 3000} | row
        kept = {key: row[key] for key in KEPT if key in row}
        rows[identity(row)] = {k: round(v, 5) if isinstance(v, float) else v for k, v in kept.items()}
    lines = [json.dumps(rows[key]) for key in sorted(rows, key=str)]
    RESULTS.parent.mkdir(exist_ok=True)
    write_text_atomically(RESULTS, "[\n" + ",\n".join(lines) + "\n]\n")


def table(rows: Iterable[dict[str, Any]]) -> None:
    """Mean rise with its standard error and the number of seeds, by metric."""
    key = lambda row: (row["model"], row["features"], row["steps"], row["layer"], row["active"])  # noqa: E731
    for place, group in itertools.groupby(sorted(rows, key=key), key):
        rises: dict[str, list[float]] = {}
        for row in group:
            rises.setdefault(row["metric"], []).append(row["rise"])
        cells = [
            f"{metric} {np.mean(values):.3f} ± {np.std(values) / max(1, len(values) - 1) ** 0.5:.3f} "
            f"({len(values)})"
            for metric, values in rises.items()
        ]
        print(*place, "   ".join(cells))


def claim_job(file: Path) -> bool:
    """Take a job that no running process has."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--name", default="tinystories-gpt")
    parser.add_argument("--out", required=True)
    parser.add_argument("--layers", default="ln1.1,ln1.2,ln1.3,ln1.4,mlp_in.1,mlp_in.3")
    parser.add_argument("--active", default="4,8,16,32")
    parser.add_argument("--metrics", default="raw,lib,root,both")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--windows", type=int, default=3600)
    parser.add_argument("--control", choices=("none", "shuffled", "redrawn"), default="none")
    parser.add_argument("--blocks", help="LIB from this block to that, such as 15-29; default: all")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--directions", action="store_true")
    parser.add_argument("--positions", action="store_true")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--table", action="store_true")
    return parser


def work_on(study: Study) -> None:
    """Do what the options ask for."""
    if study.options.collect:
        collect(study.out)
    elif study.options.positions:
        study.positions()
    elif study.options.directions:
        study.directions()
    elif study.options.table:
        table(read_results())
    else:
        for stale in (study.out / "jobs").glob("*.working"):
            if time.time() - stale.stat().st_mtime > 3600:
                stale.unlink()
        study.run()


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    work_on(Study(options))


if __name__ == "__main__":
    main()
