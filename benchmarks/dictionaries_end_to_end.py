"""Reference methods that train dictionaries through the network, beside the metrics of dictionaries.py.

    python benchmarks/dictionaries_end_to_end.py MODEL-FOLDER --out FOLDER [--layers ln1.2,ln1.4]
        [--active 8,16] [--methods end_to_end,fine_tuned,fine_tuned_lib,fine_tuned_both] [--seeds 3]

    end_to_end        KL(model || model with the layer replaced) from random features (Braun et al. 2024),
                      with as many tokens as a dictionary of dictionaries.py
    end_to_end_time   the same for as much processor time as that dictionary took
    fine_tuned        the usual dictionary, then the KL for a tenth of the steps (2503.17272)
    fine_tuned_lib, fine_tuned_root, fine_tuned_both    the same after a dictionary in that metric

FOLDER is that of dictionaries.py, whose LIB is used again. Every job is a file of FOLDER/end_to_end; the same
command resumes. Jobs that results/dictionaries_end_to_end.json holds are done; ``--collect`` adds those of
FOLDER to it, ``--table`` prints all.
"""

import itertools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dictionaries import Study, arguments, claim_job
from interbasis.base.files import write_text_atomically
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.metrics import basis_gram, metric_matrix
from interbasis.dictionaries.scores import score
from interbasis.dictionaries.settings import MetricKind, TrainSettings
from interbasis.dictionaries.training import DECAY_SHARE, fit

WINDOWS_PER_STEP = 8
FINE_TUNING_SHARE = 0.1
"""Steps of fine-tuning per step of training."""
RESULTS = Path(__file__).parent / "results" / "dictionaries_end_to_end.json"
"""Jobs that are done, of earlier sessions too."""
KEPT = (
    "layer", "active", "method", "seed", "rise", "rise_before", "explained", "dead", "l0", "seconds",
)  # fmt: skip
STORED: dict[str, tuple[Tensor, Tensor]] = {}
"""Activations [windows, T, width] and log probabilities [windows, T, vocabulary] of the layer worked on."""
START: dict[str, MetricKind] = {
    "fine_tuned": "raw", "fine_tuned_lib": "lib", "fine_tuned_root": "root", "fine_tuned_both": "both",
}  # fmt: skip


@dataclass(eq=False)
class EndToEnd:
    """Adam on the KL divergence between the model's outputs and those with a layer replaced."""

    study: Study
    layer: str
    rate: float
    seed: int

    def train(self, dictionary: Dictionary, steps: int, seconds: float | None = None) -> Dictionary:
        """Train a TopK dictionary for so many steps, or for so much processor time."""
        fields = ("encoder", "encoder_bias", "decoder", "decoder_bias")
        tensors = [getattr(dictionary, name).clone().requires_grad_() for name in fields]
        adam = torch.optim.Adam(tensors, lr=self.rate)
        generator = torch.Generator().manual_seed(self.seed)
        began = time.process_time()
        for step in itertools.count():
            spent = (time.process_time() - began) / seconds if seconds else step / steps
            if spent >= 1:
                break
            adam.param_groups[0]["lr"] = self.rate * min(1.0, (1 - spent) / DECAY_SHARE)
            rows = torch.randint(len(self.study.train), (WINDOWS_PER_STEP,), generator=generator)
            encoder, encoder_bias, decoder, decoder_bias = tensors
            trained = Dictionary(encoder, encoder_bias, decoder, decoder_bias, active=dictionary.active)
            loss = self.divergence(rows, trained)
            adam.zero_grad()
            loss.backward()
            adam.step()
        encoder, encoder_bias, decoder, decoder_bias = (tensor.detach() for tensor in tensors)
        return Dictionary(encoder, encoder_bias, decoder, decoder_bias, active=dictionary.active)

    def divergence(self, rows: Tensor, dictionary: Dictionary) -> Tensor:
        """Mean KL divergence over the positions of some training windows [n]."""
        index, columns = self.study.place(self.layer)
        f, expected = (stored[rows] for stored in STORED[self.layer])
        x = f[..., columns]
        replaced = torch.cat([f[..., : columns.start], dictionary.reconstruct(x), f[..., columns.stop :]], -1)
        replaced_log_p = self._log_p(replaced, index, self.study.train[rows])
        return torch.nn.functional.kl_div(replaced_log_p, expected, log_target=True, reduction="sum") / (
            rows.numel() * f.shape[1]
        )

    @torch.no_grad()
    def store(self) -> None:
        """Store the layer's activations and the model's log probabilities of all training windows."""
        if self.layer in STORED:
            return
        STORED.clear()
        index, _ = self.study.place(self.layer)
        parts = []
        for tokens in self.study.train.split(40):
            f = self.study.network.activations_at(index, tokens)
            parts.append((f, self._log_p(f, index, tokens)))
        f, log_p = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        STORED[self.layer] = f, log_p

    def _log_p(self, f: Tensor, index: int, tokens: Tensor) -> Tensor:
        for section in self.study.network.sections[index:]:
            f = section(f)
        return self.study.network.output_from(f, tokens).log_softmax(-1)


def random_dictionary(x: Tensor, settings: TrainSettings) -> Dictionary:
    """Random directions at the scale of the activations, around their mean."""
    generator = torch.Generator().manual_seed(settings.seed)
    D = torch.randn(settings.features, x.shape[1], generator=generator)
    D = D / D.norm(dim=1, keepdim=True)
    mean = x.mean(0)
    return Dictionary(D.clone(), -D @ mean, D, mean, active=settings.active)


def job(study: Study, layer: str, active: int, seed: int, method: str) -> dict[str, object]:
    o = study.options
    settings = TrainSettings(features=o.features, active=active, steps=o.steps, seed=seed)
    index, columns = study.place(layer)
    x, covariance = study.activations(layer)
    share = FINE_TUNING_SHARE if method in START else 1.0
    trainer = EndToEnd(study, layer, o.rate if share == 1.0 else o.fine_rate, seed)
    trainer.store()  # before the clock starts
    began, budget = time.process_time(), None
    if method in START:
        gram = basis_gram(study.lib().layers[index], columns)
        start = fit(x, metric_matrix(START[method], gram, covariance), settings)
    else:
        start = random_dictionary(x, settings)
        if method == "end_to_end_time":
            identity = torch.eye(len(covariance), dtype=torch.float64)
            fit(x, metric_matrix("raw", identity, covariance), settings)
            budget = time.process_time() - began
            began = time.process_time()
    steps = max(1, round(share * o.steps))
    dictionary = trainer.train(start, steps, budget)
    seconds = time.process_time() - began
    before = None
    if method in START:
        before = score(study.network, start, study.test, layer=layer, norm_limit=0.0).rise
    scored = score(study.network, dictionary, study.test, layer=layer, norm_limit=0.0)
    return scored.model_dump() | {
        "layer": layer, "active": active, "method": method, "seed": seed, "seconds": round(seconds, 1),
        "l0": scored.active, "rise_before": before,
    }  # fmt: skip


def identity(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("layer", "active", "method", "seed"))


def read_results() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def collect(folder: Path) -> None:
    """Add the jobs of a folder to those that are done, a line each."""
    rows = {identity(row): row for row in read_results()}
    for file in folder.glob("*.json"):
        row = json.loads(file.read_text())
        kept = {name: row[name] for name in KEPT}
        rows[identity(row)] = {k: round(v, 5) if isinstance(v, float) else v for k, v in kept.items()}
    lines = [json.dumps(rows[key]) for key in sorted(rows, key=str)]
    write_text_atomically(RESULTS, "[\n" + ",\n".join(lines) + "\n]\n")


def table(rows: list[dict[str, Any]]) -> None:
    key = lambda row: (row["layer"], row["active"], row["method"])  # noqa: E731
    for (layer, active, method), group in itertools.groupby(sorted(rows, key=key), key):
        found = list(group)
        rises, seconds = ([row[name] for row in found] for name in ("rise", "seconds"))
        print(
            f"{layer} {active:>3} {method:<16} rise {np.mean(rises):.3f} ({min(rises):.3f} to "
            f"{max(rises):.3f}), {np.mean(seconds):.0f} s, {len(rises)} seeds"
        )


def main() -> None:
    parser = arguments(__doc__)
    methods = "fine_tuned,fine_tuned_lib,fine_tuned_both,end_to_end,end_to_end_time"
    parser.add_argument("--methods", default=methods)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--fine-rate", type=float, default=3e-4)
    parser.set_defaults(layers="ln1.2,ln1.4", active="8,16", seeds=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(options.out) / "end_to_end"
    if options.collect:
        collect(folder)
        return
    if options.table:
        table(read_results())
        return
    done = set(map(identity, read_results()))
    study = Study(options)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = options.layers.split(","), map(int, options.active.split(",")), options.methods.split(",")
    for seed, layer, active, method in itertools.product(range(options.seeds), *chosen):
        file = folder / f"{layer}-{active}-{method}-{seed}.json"
        claim = file.with_suffix(".working")
        if (layer, active, method, seed) in done or file.exists() or not claim_job(claim):
            continue
        try:
            write_text_atomically(file, json.dumps(job(study, layer, active, seed, method)) + "\n")
        finally:
            claim.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
