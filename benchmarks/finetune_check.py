"""Undo a fine-tune along the directions that `interbasis diff` finds, and measure the loss.

    python benchmarks/finetune_check.py MODEL-FOLDER TUNED-FOLDER --out FOLDER [--windows 24]

TUNED-FOLDER is what finetune.py wrote. Directions come from 8 windows of its training text, losses from its
test text and from that of MODEL-FOLDER, where undoing the fine-tune must lower the loss. In every section the
fine-tuned model runs with G(f) + Π(F(f) − G(f)) in place of G(f), Π being the projection on the leading
output directions of the difference: all of them together make its sections those of the first model, none
leave them as they are. As many random directions are the control.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import interbasis
from interbasis.base.files import write_text_atomically
from interbasis.network.difference import difference
from interbasis.network.network import Network

CONTEXT = 256
DIRECTIONS = (1, 4, 16)


def windows(file: Path, count: int) -> Tensor:  # [count, CONTEXT]
    tokens = np.fromfile(file, np.uint16)[: count * CONTEXT].astype(np.int64)
    return torch.tensor(tokens).view(-1, CONTEXT)


def cross_entropy(logits: Tensor, tokens: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))


@torch.no_grad()
def hybrid_loss(first: Network, second: Network, spans: list[Tensor | None], tokens: Tensor) -> float:
    """Loss of the second model with the difference undone along orthonormal rows; None is everywhere."""
    losses = []
    changes = [difference(F, G) for F, G in zip(first.sections, second.sections, strict=True)]
    for part in tokens.split(4):
        f = second.prefix(part)
        for G, change, span in zip(second.sections, changes, spans, strict=True):
            D = change(f)
            f = G(f) + (D if span is None else (D @ span.T) @ span)
        losses.append(cross_entropy(f[..., second.nodes[-1].first_coordinate :], part))
    return sum(losses) / len(losses)


def undone_losses(
    first: Network, second: Network, tensors: dict[str, Tensor], tokens: Tensor
) -> dict[str, float]:
    """Losses of both models, and of the second with differences undone along some directions."""
    with torch.no_grad():
        losses = {
            name: float(np.mean([cross_entropy(n(part), part) for part in tokens.split(4)]))
            for name, n in (("base", first), ("fine-tune", second))
        }
    losses["all directions"] = hybrid_loss(first, second, [None] * len(first.sections), tokens)
    generator = torch.Generator().manual_seed(0)
    for count in DIRECTIONS:
        leading, random = [], []
        for layer, node in zip(first.layers, first.nodes[1:], strict=False):
            rows = tensors.get(f"{layer}.outputs", torch.zeros(0, node.width))[:count].double()
            other = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
            other[:, : node.first_coordinate] = 0
            leading.append(torch.linalg.qr(rows.T).Q.T)
            random.append(torch.linalg.qr(other.T).Q.T)
        losses[f"{count} leading"] = hybrid_loss(first, second, leading, tokens)
        losses[f"{count} random"] = hybrid_loss(first, second, random, tokens)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tuned", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    first, second = (interbasis.from_hf(str(p), output=True).double() for p in (options.model, options.tuned))
    train = windows(options.tuned / "tokens_train.uint16", 8)
    test = windows(options.tuned / "tokens_test.uint16", options.windows)
    found = interbasis.diff(
        first, second, train, along="second", directions=max(DIRECTIONS), names=("base", "fine-tune"),
        folder=options.out / "along-second",
    )  # fmt: skip
    own = windows(options.model / "tokens_test.uint16", options.windows)
    result = {}
    for name, tokens in (("other corpus", test), ("own corpus", own)):
        losses = undone_losses(first, second, found.tensors, tokens)
        change = losses["base"] - losses["fine-tune"]
        undone = {kind: (loss - losses["fine-tune"]) / change for kind, loss in losses.items()}
        result[name] = {"losses": losses, "undone": undone}
        print(name, json.dumps(result[name], indent=1), flush=True)
    write_text_atomically(options.out / "undone.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
