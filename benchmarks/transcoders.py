"""Transcoders of an MLP: does the share of the Jacobian predict errors on other data?

    python benchmarks/transcoders.py MODEL-FOLDER OTHER-TOKENS --out FOLDER [--layers mlp_in.1,mlp_in.3]

MODEL-FOLDER holds a language model with tokens_train.uint16 and tokens_test.uint16, OTHER-TOKENS is a file of
the same kind from another corpus. Transcoders (TopK) of every size, sparsity and training time are trained on
the model's own text and compared with the MLP on its test text, and on the other corpus. Every transcoder is
a line of FOLDER/transcoders.jsonl; the same command resumes. ``--table`` prints rank correlations.
"""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata, spearmanr
from torch import Tensor

import interbasis
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.network.network import Network

CONTEXT = 256
SIZES, ACTIVE, STEPS = (64, 256, 1024), (4, 16, 48), (100, 400, 1600)
BATCH = 1024
TRAIN_WINDOWS, TEST_WINDOWS = 800, 24
RESAMPLES = 2000


def windows(file: Path, count: int) -> Tensor:  # [count, CONTEXT]
    tokens = np.fromfile(file, np.uint16)[: count * CONTEXT].astype(np.int64)
    return torch.tensor(tokens).view(-1, CONTEXT)


def inputs_and_outputs(network: Network, layer: str, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """x and y [tokens, d]: the stream that the MLP after a layer reads, and the MLP's outputs."""
    index = network.layers.index(layer)
    section = network.sections[index]
    columns, rows = slice(*section.columns_read), section.write.any(1)
    x, y = [], []
    with torch.no_grad():
        for part in tokens.split(50):
            f = network.activations_at(index, part).flatten(0, 1)
            x.append(f[:, columns].float())
            y.append((section(f[:, None])[:, 0] - f[:, 1:] @ section.skip[:, 1:].T)[:, rows].float())
    return torch.cat(x), torch.cat(y)


def train(x: Tensor, y: Tensor, features: int, active: int, steps: int) -> Dictionary:
    """A TopK transcoder from x to y, with Adam on the squared error."""
    generator = torch.Generator().manual_seed(features + active + steps)
    scale_in, scale_out = x.square().sum(1).mean().sqrt(), y.sub(y.mean(0)).square().sum(1).mean().sqrt()
    E, D = (torch.randn(features, t.shape[1], generator=generator) for t in (x, y))
    parameters = [
        (E / E.norm(dim=1, keepdim=True)).requires_grad_(), torch.zeros(features, requires_grad=True),
        (0.1 * D / D.norm(dim=1, keepdim=True)).requires_grad_(), torch.zeros(y.shape[1], requires_grad=True),
    ]  # fmt: skip
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, 2 * (1 - step / steps))
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        u = x[rows] / scale_in @ parameters[0].T + parameters[1]
        best = u.topk(active, dim=1)
        z = torch.zeros_like(u).scatter(1, best.indices, best.values.relu())
        wanted = (y[rows] - y.mean(0)) / scale_out
        loss = (z @ parameters[2] + parameters[3] - wanted).square().sum(1).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    E, c, D, b = (p.detach() for p in parameters)
    return Dictionary(
        E / scale_in, c, D * scale_out, b * scale_out + y.mean(0), active=active, output_hook="mlp_out"
    )


def cross_entropy(network: Network, tokens: Tensor) -> float:
    with torch.no_grad():
        parts = [
            torch.nn.functional.cross_entropy(network(part)[:, :-1].flatten(0, 1), part[:, 1:].flatten())
            for part in tokens.split(8)
        ]
    return float(torch.stack(parts).mean())


def measure(
    network: Network, layer: str, transcoder: Dictionary, data: dict[str, Tensor]
) -> dict[str, float]:
    """Shares of the outputs and of the Jacobian, plain error, and rise of the loss, on each corpus."""
    replaced = interbasis.dictionaries.with_transcoder(network, transcoder, layer)
    result: dict[str, float] = {}
    for name, tokens in data.items():
        index = network.layers.index(layer)
        one, other = (n.between(n.layers[index : index + 2]) for n in (network, replaced))
        section = interbasis.diff(one, other, tokens, progress=False).record.sections[layer]
        x, y = inputs_and_outputs(network, layer, tokens)
        error = (transcoder.reconstruct(x) - y).square().sum() / (y - y.mean(0)).square().sum()
        result |= {
            f"{name} outputs": section.outputs.value, f"{name} jacobian": section.jacobian.value,
            f"{name} error": float(error),
            f"{name} rise": cross_entropy(replaced, tokens) - cross_entropy(network, tokens),
        }  # fmt: skip
    return result


def table(rows: list[dict[str, float]]) -> None:
    """Print rank correlations with 95 % intervals over resampled transcoders."""
    for layer in sorted({row["layer"] for row in rows}):
        here = [row for row in rows if row["layer"] == layer]
        print(f"{layer}: {len(here)} transcoders")
        generator = np.random.default_rng(0)
        samples = generator.integers(len(here), size=(RESAMPLES, len(here)))
        for target in ("other error", "other rise"):
            y = np.array([row[target] for row in here])
            predictors = {
                name: np.array([row[name] for row in here])
                for name in ("own error", "own outputs", "own jacobian")
            }
            values = {}
            for name, x in predictors.items():
                values[name] = np.array([spearmanr(x[s], y[s]).statistic for s in samples])
                low, high = np.quantile(values[name], [0.025, 0.975])
                print(f"  {name} → {target}: {spearmanr(x, y).statistic:.3f} [{low:.3f}, {high:.3f}]")
            low, high = np.quantile(values["own jacobian"] - values["own error"], [0.025, 0.975])
            print(f"  jacobian − error: [{low:.3f}, {high:.3f}]")
            for name, given in (("own jacobian", "own error"), ("own error", "own jacobian")):
                partial = [partial_rank(predictors[name][s], y[s], predictors[given][s]) for s in samples]
                whole = partial_rank(predictors[name], y, predictors[given])
                low, high = np.nanquantile(partial, [0.025, 0.975])
                print(f"  {name} → {target}, given {given}: {whole:.3f} [{low:.3f}, {high:.3f}]")


def partial_rank(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float:
    """Rank correlation of x and y with that of each with a third removed."""
    a, b, c = (rankdata(v) for v in (x, y, given))
    r = np.corrcoef([a, b, c])
    return float((r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", default="mlp_in.1,mlp_in.3")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "transcoders.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if options.table:
        table(rows)
        return
    network = interbasis.from_hf(str(options.model)).to(torch.float32)
    data = {
        "own": windows(options.model / "tokens_test.uint16", TEST_WINDOWS),
        "other": windows(options.other, TEST_WINDOWS),
    }
    done = {(row["layer"], row["features"], row["active"], row["steps"]) for row in rows}
    for layer in options.layers.split(","):
        tokens = windows(options.model / "tokens_train.uint16", TRAIN_WINDOWS)
        x, y = inputs_and_outputs(network, layer, tokens)
        for features, active, steps in itertools.product(SIZES, ACTIVE, STEPS):
            if (layer, features, active, steps) in done:
                continue
            transcoder = train(x, y, features, active, steps)
            row = {"layer": layer, "features": features, "active": active, "steps": steps}
            row |= measure(network, layer, transcoder, data)
            with file.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
