"""Training a small residual convolutional network on CIFAR-10.

Adam with decoupled weight decay, a learning rate that rises over the first fifth of the training and falls to
0 along a cosine, images mirrored and shifted by up to four pixels at random. Orders and shifts come from
generators seeded with (seed, epoch) and (seed, step), so that a run can go on at any step.
"""

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.data.samples import Samples
from interbasis.models.residual import Residual, save
from interbasis_studies.training.cifar10 import Report
from interbasis_studies.training.state import discard_state, restore_state, save_state

SAVE_EVERY = 100
"""Steps between two saves of the training state."""
MAX_SHIFT = 4
"""Pixels by which an image is moved."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result of a training run, apart from the machine's arithmetic."""

    seed: int = 0
    widths: tuple[int, ...] = (16, 32, 64)
    epochs: int = 12
    batch: int = 128
    learning_rate: float = 0.01
    weight_decay: float = 0.02


def train(recipe: Recipe, data: tuple[Samples, Samples], path: Path, report: Report | None = None) -> Path:
    """Train on the first of two splits, or go on training, and write the checkpoint (safetensors).

    The state is kept beside it as ``path.state``; a run that was killed resumes there and ends with the
    weights of an uninterrupted one. The second split is for accuracies alone.
    """
    if recipe.epochs < 1 or recipe.batch < 1:
        raise InterbasisError(f"epochs and batch must be at least 1, not {recipe.epochs} and {recipe.batch}")
    if data[0].image is None:
        raise InterbasisError(f"expected images to train on, received {data[0].kind}")
    path.parent.mkdir(parents=True, exist_ok=True)
    inputs, labels = data[0].all()
    images = inputs.view(len(inputs), *data[0].image)
    module = _initial(recipe, data[0])
    weights, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    optimizer = torch.optim.AdamW(weights.values(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    state = path.with_suffix(".state")
    step = restore_state(state, asdict(recipe), weights, optimizer, {"step": 0}, buffers)["step"]
    per_epoch = -(-len(labels) // recipe.batch)
    steps, accuracy = per_epoch * recipe.epochs, 0.0
    started, first = time.monotonic(), step
    while step < steps:
        epoch, place = divmod(step, per_epoch)
        order = torch.randperm(len(labels), generator=_generator(recipe, epoch))
        some = order[place * recipe.batch : (place + 1) * recipe.batch]
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _share(step / steps)
        moved = augmented(images[some], _generator(recipe, recipe.epochs + step))
        loss = nn.functional.cross_entropy(module.train()(moved), labels[some])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % SAVE_EVERY == 0 or step % per_epoch == 0:
            if step % per_epoch == 0:
                accuracy = measure_accuracy(module, data[1])
            save_state(state, asdict(recipe), weights, optimizer, {"step": step}, buffers)
            if report:
                report(step, steps, loss.item(), accuracy)
    training = asdict(recipe) | {
        "test_accuracy": measure_accuracy(module, data[1]),
        "training_accuracy": measure_accuracy(module, data[0]),
        "steps_per_second": round((step - first) / max(time.monotonic() - started, 1e-9), 1),
        "torch": torch.__version__,
    }
    save(module, path, "cifar10", training)
    discard_state(state)
    return path


def _initial(recipe: Recipe, data: Samples) -> Residual:
    assert data.image is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Residual(data.image[0], data.image[1], recipe.widths, len(data.classes))


def _generator(recipe: Recipe, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(recipe.seed * 1_000_003 + number)


def _share(progress: float) -> float:
    """Of the highest learning rate: up along a line, down along a cosine."""
    return 5 * progress if progress < 0.2 else (1 + math.cos(math.pi * (progress - 0.2) / 0.8)) / 2


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:  # [n, c, h, w]
    """Every image mirrored or not, and shifted, with zeros where nothing is left."""
    n, _, height, width = images.shape
    mirrored = torch.rand(n, generator=generator) < 0.5
    down, right = torch.randint(2 * MAX_SHIFT + 1, (2, n, 1), generator=generator)
    padded = nn.functional.pad(images, [MAX_SHIFT] * 4)
    rows, columns = down + torch.arange(height), right + torch.arange(width)  # [n, h], [n, w]
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    sample = torch.arange(n)[:, None, None]
    return (
        padded.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None]]
        .permute(0, 3, 1, 2)
        .contiguous()
    )


@torch.no_grad()
def measure_accuracy(module: nn.Module, samples: Samples) -> float:
    """The share of samples whose largest output is the label's, in evaluation mode."""
    module.eval()
    right = sum((module(inputs).argmax(-1) == labels).sum().item() for inputs, labels in samples)
    return right / len(samples)
