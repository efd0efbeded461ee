"""Training the paper's MLP on CIFAR-10: 3072–60–60–10 with ReLU, Adam, inputs in [−1, 1].

The order of an epoch comes from a generator seeded with (seed, epoch), so that a run can go on at any step.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from interbasis.base.errors import InterbasisError
from interbasis.data.samples import Samples
from interbasis.models import mlp
from interbasis_studies.training.state import discard_state, restore_state, save_state

Report = Callable[[int, int, float, float], None]
"""Called as report(step, steps in all, training loss, test accuracy)."""

SAVE_EVERY = 250
"""Steps between two saves of the training state."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result of a training run, apart from the machine's arithmetic."""

    seed: int = 0
    hidden: tuple[int, ...] = (60, 60)
    epochs: int = 5
    batch: int = 64
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


def initial_module(recipe: Recipe, inputs: int, outputs: int) -> nn.Sequential:
    """Linear, ReLU, Linear, … with PyTorch's own initial weights, drawn from the recipe's seed."""
    widths = [inputs, *recipe.hidden, outputs]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(recipe: Recipe, data: tuple[Samples, Samples], path: Path, report: Report | None = None) -> Path:
    """Train on the first of two splits, or go on training, and write the checkpoint (safetensors).

    The state is kept beside it as ``path.state``; a run that was killed resumes there and ends with the
    weights of an uninterrupted one. The second split is for accuracies alone.
    """
    if recipe.epochs < 1 or recipe.batch < 1:
        raise InterbasisError(f"epochs and batch must be at least 1, not {recipe.epochs} and {recipe.batch}")
    path.parent.mkdir(parents=True, exist_ok=True)
    inputs, labels = data[0].all()
    module = initial_module(recipe, inputs[0].numel(), len(data[0].classes))
    weights = dict(module.named_parameters())
    optimizer = torch.optim.Adam(weights.values(), lr=recipe.learning_rate, betas=recipe.betas, fused=True)
    state = path.with_suffix(".state")
    step = restore_state(state, asdict(recipe), weights, optimizer, {"step": 0})["step"]
    per_epoch = -(-len(labels) // recipe.batch)
    steps = per_epoch * recipe.epochs
    started, first, accuracy, order = time.monotonic(), step, 0.0, None
    while step < steps:
        epoch, place = divmod(step, per_epoch)
        if order is None or place == 0:
            order = epoch_order(recipe, epoch, len(labels))
        some = order[place * recipe.batch : (place + 1) * recipe.batch]
        loss = nn.functional.cross_entropy(module(inputs[some]), labels[some])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % SAVE_EVERY == 0 or step % per_epoch == 0:
            if step % per_epoch == 0:
                accuracy = measure_accuracy(module, data[1])
            save_state(state, asdict(recipe), weights, optimizer, {"step": step})
            if report:
                report(step, steps, loss.item(), accuracy)
    rate = (step - first) / max(time.monotonic() - started, 1e-9)
    training = asdict(recipe) | {
        "test_accuracy": measure_accuracy(module, data[1]),
        "training_accuracy": measure_accuracy(module, data[0]),
        "steps_per_second": round(rate, 1),
        "torch": torch.__version__,
    }
    mlp.save(module, path, "cifar10", training)
    discard_state(state)
    return path


def epoch_order(recipe: Recipe, epoch: int, samples: int) -> Tensor:  # [samples]
    """The order in which an epoch goes through the data."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
    return torch.randperm(samples, generator=generator)


@torch.no_grad()
def measure_accuracy(module: nn.Module, samples: Samples) -> float:
    """The share of samples whose largest output is the label's."""
    right = sum((module(inputs).argmax(-1) == labels).sum().item() for inputs, labels in samples)
    return right / len(samples)
