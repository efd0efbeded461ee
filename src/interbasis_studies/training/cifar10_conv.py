"""Training a small residual convolutional network on CIFAR-10.

Adam with decoupled weight decay, a learning rate that rises over the first fifth of the training and falls to
0 along a cosine, images mirrored and shifted by up to four pixels at random. Orders and shifts come from
generators seeded with (seed, epoch) and (seed, step), so that a run can go on at any step.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.data.samples import Samples
from interbasis.models.residual import Residual, save
from interbasis_studies.training.cifar10 import Report, check_recipe, seeded_generator, train_epochs
from interbasis_studies.training.state import discard_state

SAVE_EVERY = 100
"""Steps between two saves of the training state."""
MAX_SHIFT = 4
"""Pixels by which an image is moved."""


@dataclass(frozen=True)
class ConvRecipe:
    """Everything that decides the result of a training run, apart from the machine's arithmetic."""

    seed: int = 0
    widths: tuple[int, ...] = (16, 32, 64)
    epochs: int = 12
    batch: int = 128
    learning_rate: float = 0.01
    weight_decay: float = 0.02


def train(
    recipe: ConvRecipe, data: tuple[Samples, Samples], path: Path, report: Report | None = None
) -> Path:
    """Train on the first of two splits, or go on training, and write the checkpoint (safetensors).

    The second split is for accuracies alone.
    """
    check_recipe(recipe)
    shape = data[0].image
    if shape is None:
        raise InterbasisError(f"expected images to train on, received {data[0].kind}")
    inputs, labels = data[0].all()
    images = inputs.view(len(inputs), *shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        module = Residual(shape[0], shape[1], recipe.widths, len(data[0].classes))
    optimizer = torch.optim.AdamW(module.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    steps = recipe.epochs * -(-len(labels) // recipe.batch)

    def loss(samples: Tensor, step: int) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _share(step / steps)
        moved = augmented(images[samples], seeded_generator(recipe, recipe.epochs + step))
        return nn.functional.cross_entropy(module.train()(moved), labels[samples])

    training = train_epochs(recipe, data, path, (module, optimizer, loss), SAVE_EVERY, report)
    save(module, path, "cifar10", training)
    discard_state(path.with_suffix(".state"))
    return path


def _share(progress: float) -> float:
    """Share of the highest learning rate: up along a line, down along a cosine."""
    return 5 * progress if progress < 0.2 else (1 + math.cos(math.pi * (progress - 0.2) / 0.8)) / 2


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:  # [n, c, h, w]
    """Mirror every image or not, and shift it, with zeros where nothing is left."""
    n, _, height, width = images.shape
    mirrored = torch.rand(n, generator=generator) < 0.5
    down, right = torch.randint(2 * MAX_SHIFT + 1, (2, n, 1), generator=generator)
    padded = nn.functional.pad(images, [MAX_SHIFT] * 4)
    rows, columns = down + torch.arange(height), right + torch.arange(width)  # [n, h], [n, w]
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    sample = torch.arange(n)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None]]
    return moved.permute(0, 3, 1, 2).contiguous()
