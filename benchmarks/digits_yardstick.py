"""The yardstick's rows on MLPs that read handwritten digits: edges at equal divergence, and stability.

    python benchmarks/digits_yardstick.py SEED FOLDER

Trains a 64-32-32-10 ReLU MLP on 1,200 of scikit-learn's digits in a few seconds, and measures LIB and PCA on
the other 597, on the trained network and on copies with shuffled and redrawn weights.
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import interbasis

TRAINED = 1200


def digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 64] in [−1, 1] and labels, in a fixed random order."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images, dtype=torch.float64)[order] / 8 - 1, torch.tensor(labels)[order]


def train(inputs: Tensor, labels: Tensor) -> nn.Sequential:
    """Train an MLP with Adam, from torch's current seed."""
    layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    module = nn.Sequential(*layers).double()
    optimiser = torch.optim.Adam(module.parameters(), 1e-3, weight_decay=1e-4)
    for _ in range(60):
        for batch in torch.randperm(len(inputs)).split(32):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(inputs[batch]), labels[batch]).backward()
            optimiser.step()
    return module


def main() -> None:
    """Train, measure, and print the accuracy."""
    seed, folder = int(sys.argv[1]), Path(sys.argv[2])
    inputs, labels = digits()
    torch.manual_seed(seed)
    module = train(inputs[:TRAINED], labels[:TRAINED])
    test = inputs[TRAINED:], labels[TRAINED:]
    print(f"test accuracy {(module(test[0]).argmax(1) == test[1]).double().mean():.4f}")
    interbasis.yardstick(
        interbasis.from_torch(module), (inputs[:TRAINED], labels[:TRAINED]), test_data=test,
        methods=("lib", "pca"), rows=("rank", "edges", "learnt", "stability"), removed=(), folder=folder,
    )  # fmt: skip


if __name__ == "__main__":
    main()
