"""Training the paper's MLP on CIFAR-10: 3072–60–60–10 with ReLU, Adam, inputs in [−1, 1].

The order of an epoch comes from a generator seeded with (seed, epoch), so that a run can go on at any step.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.data.samples import Samples
from interbasis.models import mlp
from interbasis_studies.training.state import TrainingState, discard_state

if TYPE_CHECKING:
    from interbasis_studies.training.cifar10_conv import ConvRecipe

Report = Callable[[int, int, float, float], None]
"""Called as report(step, steps in all, training loss, test accuracy)."""

BatchLoss = Callable[[Tensor, int], Tensor]
"""Called as loss(indices of the samples, step)."""

SAVE_EVERY = 250
"""Steps between two saves of the training state."""


@dataclass(frozen=True)
class Cifar10Recipe:
    """Everything that decides the result of a training run, apart from the machine's arithmetic."""

    seed: int = 0
    hidden: tuple[int, ...] = (60, 60)
    epochs: int = 5
    batch: int = 64
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


def train(
    recipe: Cifar10Recipe, data: tuple[Samples, Samples], path: Path, report: Report | None = None
) -> Path:
    """Train on the first of two splits, or go on training, and write the checkpoint (safetensors).

    The second split is for accuracies alone.
    """
    check_recipe(recipe)
    inputs, labels = data[0].all()
    widths = [inputs[0].numel(), *recipe.hidden, len(data[0].classes)]
    with torch.random.fork_rng(devices=[]):  # PyTorch's own initial weights, drawn from the recipe's seed
        torch.manual_seed(recipe.seed)
        layers = [layer for ends in pairwise(widths) for layer in (nn.Linear(*ends), nn.ReLU())]
    module = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(module.parameters(), lr=recipe.learning_rate, betas=recipe.betas, fused=True)

    def loss(samples: Tensor, step: int) -> Tensor:
        return nn.functional.cross_entropy(module(inputs[samples]), labels[samples])

    training = train_epochs(recipe, data, path, (module, optimizer, loss), SAVE_EVERY, report)
    mlp.save(module, path, "cifar10", training)
    discard_state(path.with_suffix(".state"))
    return path


def check_recipe(recipe: "Cifar10Recipe | ConvRecipe") -> None:
    """Refuse a recipe without epochs or batches."""
    if recipe.epochs < 1 or recipe.batch < 1:
        raise InterbasisError(f"epochs and batch must be at least 1, not {recipe.epochs} and {recipe.batch}")


def train_epochs(
    recipe: "Cifar10Recipe | ConvRecipe",
    data: tuple[Samples, Samples],
    path: Path,
    model: tuple[nn.Module, torch.optim.Optimizer, BatchLoss],
    save_every: int,
    report: Report | None,
) -> dict[str, object]:
    """Train over all epochs, or go on training, and return what the checkpoint says of the training.

    The state is stored beside ``path`` as ``path.state``; a run that was killed resumes there and ends with
    the weights of an uninterrupted one.
    """
    module, optimizer, batch_loss = model
    path.parent.mkdir(parents=True, exist_ok=True)
    weights, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    state = TrainingState(path.with_suffix(".state"), asdict(recipe), weights, optimizer, buffers)
    step = state.restore(step=0)["step"]
    per_epoch = -(-len(data[0]) // recipe.batch)
    steps = per_epoch * recipe.epochs
    started, first, accuracy, order = time.monotonic(), step, 0.0, None
    while step < steps:
        epoch, place = divmod(step, per_epoch)
        if order is None or place == 0:
            order = epoch_order(recipe, epoch, len(data[0]))
        loss = batch_loss(order[place * recipe.batch : (place + 1) * recipe.batch], step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % save_every == 0 or step % per_epoch == 0:
            if step % per_epoch == 0:
                accuracy = measure_accuracy(module, data[1])
            state.save(step=step)
            if report:
                report(step, steps, loss.item(), accuracy)
    rate = (step - first) / max(time.monotonic() - started, 1e-9)
    return asdict(recipe) | {
        "test_accuracy": measure_accuracy(module, data[1]),
        "training_accuracy": measure_accuracy(module, data[0]),
        "steps_per_second": round(rate, 1),
        "torch": torch.__version__,
    }


def seeded_generator(recipe: "Cifar10Recipe | ConvRecipe", number: int) -> torch.Generator:
    """Generator that belongs to an epoch or a step of a recipe."""
    return torch.Generator().manual_seed(recipe.seed * 1_000_003 + number)


def epoch_order(recipe: "Cifar10Recipe | ConvRecipe", epoch: int, samples: int) -> Tensor:  # [samples]
    """The order in which an epoch goes through the data."""
    return torch.randperm(samples, generator=seeded_generator(recipe, epoch))


@torch.no_grad()
def measure_accuracy(module: nn.Module, samples: Samples) -> float:
    """The share of samples whose largest output is the label's, in evaluation mode."""
    module.eval()
    right = sum((module(inputs).argmax(-1) == labels).sum().item() for inputs, labels in samples)
    return right / len(samples)
