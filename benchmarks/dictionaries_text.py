"""Dictionaries of a larger language model, trained in several metrics on a text: as dictionaries.py does.

    python benchmarks/dictionaries_text.py MODEL-FOLDER --text FILE --out FOLDER
        [--layers ln1.5,ln1.15,ln1.25] [--active 8,32] [--metrics raw,root] [--seeds 1] [--features 4608]
        [--steps 512] [--windows 4096] [--blocks 15-29]

1. Activations of all layers come from one forward pass of Hugging Face's model over the text, its products in
   bfloat16 and its residual stream in float32; tokens of massive norm are left out, as in a build.
2. LIB of the whole network is built on the first windows, with sampled query positions.
3. Every job is a file of FOLDER/jobs.

Each step resumes. ``--only activations`` or ``--only lib`` ends after that step.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from dictionaries import CONTEXT, Study, arguments, work_on
from interbasis.base.files import write_text_atomically
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.graph.settings import DEFAULT_NORM_LIMIT
from interbasis.network.replacement import replaced_output

TEST_WINDOWS = 60
SURVEY_WINDOWS = 32
"""Windows whose median norms decide which tokens are massive; 8,192 tokens, as in a build."""
LIB_WINDOWS = 16
WINDOWS_AT_ONCE = 8


class TextStudy(Study):
    """A study whose activations are stored in files, tokens of massive norm left out."""

    norm_limit = DEFAULT_NORM_LIMIT
    lib_queries = 8

    def load(self) -> None:
        tokens = self.tokens()
        self.unreplaced: dict[str, tuple[Tensor, Tensor, tuple[float, float]]] = {}
        whole = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT)
        self.train, self.test = whole[:-TEST_WINDOWS][: self.options.windows], whole[-TEST_WINDOWS:]
        self.lib_data = self.train[:LIB_WINDOWS]

    def tokens(self) -> Tensor:
        """The text as tokens, without special ones."""
        file = self.out / "tokens.npy"
        if not file.exists():
            tokenizer = AutoTokenizer.from_pretrained(self.model)
            text = Path(self.options.text).read_text(encoding="utf-8")
            np.save(file, np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32))
        return torch.from_numpy(np.load(file).astype(np.int64))

    def activations(self, layer: str) -> tuple[Tensor, Tensor]:  # [tokens, d], [d, d]
        if self.held is None or self.held[0] != layer:
            rows = self.stored()[layer]
            width = self.place(layer)[1].stop - self.place(layer)[1].start
            memory = np.memmap(self.file(layer), np.float32, "r", shape=(rows, width))
            x = torch.from_numpy(np.array(memory))
            self.held = layer, x, covariance(x)
        return self.held[1:]

    def file(self, layer: str) -> Path:
        return self.out / f"{layer}.float32"

    @torch.no_grad()
    def scores(self, layer: str, dictionary: Dictionary, offset: Tensor, gram: Tensor) -> dict[str, object]:
        """Scores on the test windows; the model alone, and the stream at its mean, are measured once."""
        index, columns = self.place(layer)
        if layer not in self.unreplaced:
            parts = [
                self.network.activations_at(index, tokens) for tokens in self.test.split(WINDOWS_AT_ONCE)
            ]
            f = torch.cat(parts)
            limit = self.limits()[layer]
            counts = f[..., columns].norm(dim=-1) <= limit
            mean = f[..., columns][counts].mean(0)
            losses = (
                self.rest(index, columns, f, f[..., columns]),
                self.rest(index, columns, f, torch.where(counts[..., None], mean, f[..., columns])),
            )
            self.unreplaced[layer] = f, counts, losses
        f, counts, (loss, mean_loss) = self.unreplaced[layer]
        x = f[..., columns]
        active = dictionary.encode(x[counts]) > 0
        reconstruction = dictionary.reconstruct(x)
        replaced = self.rest(index, columns, f, torch.where(counts[..., None], reconstruction, x))
        error = (x - reconstruction)[counts].double().square().sum()
        variance = (x[counts] - x[counts].mean(0)).double().square().sum()
        return {
            "loss": loss, "mean_loss": mean_loss, "rise": replaced - loss,
            "explained": 1 - (error / variance).item(), "dead": (~active.any(0)).double().mean().item(),
            "l0": active.sum(1).double().mean().item(),
        }  # fmt: skip

    def rest(self, index: int, columns: slice, f: Tensor, x: Tensor) -> float:
        """Test loss with a stream of node layer ``index`` put at x."""
        total = 0.0
        parts = zip(*(tensor.split(WINDOWS_AT_ONCE) for tensor in (self.test, f, x)), strict=True)
        for tokens, part, stream in parts:
            changed = torch.cat([part[..., : columns.start], stream, part[..., columns.stop :]], -1)
            outputs = replaced_output(self.network, index, changed, tokens, {})[:, :-1]
            total += torch.nn.functional.cross_entropy(
                outputs.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum"
            ).item()
        return total / self.test[:, 1:].numel()

    def limits(self) -> dict[str, float]:
        """Norms up to which tokens count, by layer."""
        state = json.loads((self.out / "activations.json").read_text())
        return dict(zip(state["rows"], state["limits"], strict=True))

    @torch.no_grad()
    def stored(self) -> dict[str, int]:
        """Store the activations of all layers, and return how many tokens each has."""
        layers = self.options.layers.split(",")
        record = self.out / "activations.json"
        state: dict[str, Any] = {"windows": 0}
        if record.exists():
            state = json.loads(record.read_text())
        if state["windows"] >= len(self.train):
            return state["rows"]
        blocks = [int(layer.removeprefix("ln1.")) for layer in layers]  # ln1.k is the stream before block k
        model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32).model
        model.layers = model.layers[
            : max(blocks) + 1
        ]  # the last one's output would come after the final norm

        def streams(tokens: Tensor) -> list[Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                hidden = model(tokens, use_cache=False, output_hidden_states=True).hidden_states
            return [hidden[block].flatten(0, 1) for block in blocks]

        if not state["windows"]:
            self.compare(layers, streams)
            first = zip(*map(streams, self.train[:SURVEY_WINDOWS].split(WINDOWS_AT_ONCE)), strict=True)
            medians = [torch.cat(parts).norm(dim=1).median().item() for parts in first]
            limits = [self.norm_limit * median for median in medians]
            state = {"windows": 0, "limits": limits, "rows": dict.fromkeys(layers, 0)}
        while state["windows"] < len(self.train):
            begun = state["windows"]
            chosen = self.train[begun : begun + WINDOWS_AT_ONCE]
            for layer, x, limit in zip(layers, streams(chosen), state["limits"], strict=True):
                kept = x[x.norm(dim=1) <= limit]
                with open(self.file(layer), "r+b" if begun else "wb") as out:
                    out.seek(4 * x.shape[1] * state["rows"][layer])
                    out.write(kept.float().contiguous().numpy().data)
                state["rows"][layer] += len(kept)
            state["windows"] = begun + len(chosen)
            write_text_atomically(record, json.dumps(state))
        return state["rows"]

    def compare(self, layers: list[str], streams: Any) -> None:
        """The stream of Hugging Face's model is that of the node layer."""
        tokens = self.test[:2]
        for layer, x in zip(layers, streams(tokens), strict=True):
            index, columns = self.place(layer)
            expected = self.network.activations_at(index, tokens)[..., columns].flatten(0, 1)
            late = torch.arange(len(x)) % CONTEXT > 0
            error = (x - expected)[late].square().sum() / expected[late].var(0).sum() / late.sum()
            print(f"{layer}: bfloat16 products change the stream by {error:.1e} of its variance", flush=True)
            assert error < 2e-3


def covariance(x: Tensor) -> Tensor:  # [tokens, d] -> [d, d]
    mean = x.mean(0, dtype=torch.float64)
    total = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for block in x.split(2**15):
        centred = block.double() - mean
        total += centred.T @ centred
    return total / len(x)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--text", required=True)
    parser.add_argument("--only", choices=("activations", "lib", "jobs"), default="jobs")
    parser.set_defaults(
        layers="ln1.5,ln1.15,ln1.25", active="8,32", metrics="raw,root", seeds=1, features=4608, steps=512,
        windows=4096, name="smollm2-135m",
    )  # fmt: skip
    options: Namespace = parser.parse_args()
    torch.set_num_threads(1)
    study = TextStudy(options)
    if options.only == "activations":
        print(study.stored())
    elif options.only == "lib":
        study.lib()
    else:
        work_on(study)


if __name__ == "__main__":
    main()
