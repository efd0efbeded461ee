"""When the waves of modular addition form, measured without `interbasis diff`.

    python benchmarks/waves.py CHECKPOINT [CHECKPOINT …]

Per checkpoint of `interbasis train modadd`: accuracy and cross-entropy on pairs that it was not trained on,
and the share of the variance over tokens that the five strongest of the (p − 1)/2 frequencies carry, in the
embedding W_E and in the unembedding W_U. Random weights have 10/(p − 1) and a little more, for the choice.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from interbasis.data.modadd import split
from interbasis.models.modadd import training_fraction
from interbasis_studies.training.modadd import logits

FREQUENCIES = 5


def wave_share(rows: Tensor) -> float:  # [p, d]
    """Share of the variance over rows in the strongest frequencies."""
    power = torch.fft.rfft(rows.double(), dim=0)[1:].abs().square().sum(1)
    return float(power.topk(FREQUENCIES).values.sum() / power.sum())


def main(paths: list[str]) -> None:
    print(
        "| checkpoint | test accuracy | test loss | waves in W_E | waves in W_U |\n|---|---:|---:|---:|---:|"
    )
    for path in paths:
        weights = load_file(path)
        p = len(weights["embed.W_E"]) - 1
        inputs, labels = split(p, training_fraction(Path(path)))[1]
        out = logits(weights, inputs[:, 0], inputs[:, 1])
        accuracy = float((out.argmax(-1) == labels).double().mean())
        loss = float(torch.nn.functional.cross_entropy(out, labels))
        shares = [wave_share(weights["embed.W_E"][:p]), wave_share(weights["unembed.W_U"].T[:p])]
        print(f"| {Path(path).stem} | {accuracy:.3f} | {loss:.3f} | {shares[0]:.2f} | {shares[1]:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
