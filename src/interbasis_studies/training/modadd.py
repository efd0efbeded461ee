"""Training the one-layer transformer on modular addition, z = x + y mod p.

The recipe is the paper's: AdamW (weight decay 1, betas 0.9 and 0.98), learning rate 1e-3 held constant
after a 10-step warm-up, full batch of 30 % of all pairs, at most 60,000 steps.

What makes a step cheap: every sequence is [x, y, =] and only the last position is read, so the query is
one vector, and keys and values depend on (token, position) alone. They are computed once for the 2p + 1
possible (token, position) pairs and looked up for the n sequences. The function and its gradients are
those of the transformer, only the work of the embedding and of attention no longer grows with n.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from interbasis.base.files import write_atomically
from interbasis.data.modadd import FRACTION, split
from interbasis.models.modadd import FAMILY
from interbasis_studies.training.state import TrainingState, discard_state

Weights = dict[str, Tensor]
Report = Callable[[int, float, float], None]
"""Called as report(step, training loss, test accuracy)."""

CHECK_EVERY = 250
"""Steps between two evaluations on the test set and two saves of the training state."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result of a training run, apart from the machine's arithmetic."""

    seed: int = 0
    p: int = 113
    width: int = 128
    heads: int = 4
    hidden: int = 512
    fraction: float = FRACTION
    learning_rate: float = 1e-3
    weight_decay: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    warm_up: int = 10
    steps: int = 60_000
    stop_at_accuracy: float = 0.999
    stop_after: int = 5_000


def initial_weights(recipe: Recipe) -> Weights:
    """Gaussian weights of standard deviation 1/√width (embeddings and read-ins alike), biases 0."""
    generator = torch.Generator().manual_seed(recipe.seed)
    width, heads, head = recipe.width, recipe.heads, recipe.width // recipe.heads

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / math.sqrt(width)

    weights = {"embed.W_E": normal(recipe.p + 1, width), "pos_embed.W_pos": normal(3, width)}
    for name in "QKV":
        weights[f"blocks.0.attn.W_{name}"] = normal(heads, width, head)
        weights[f"blocks.0.attn.b_{name}"] = torch.zeros(heads, head)
    weights["blocks.0.attn.W_O"] = normal(heads, head, width)
    weights["blocks.0.attn.b_O"] = torch.zeros(width)
    weights["blocks.0.mlp.W_in"] = normal(width, recipe.hidden)
    weights["blocks.0.mlp.b_in"] = torch.zeros(recipe.hidden)
    weights["blocks.0.mlp.W_out"] = normal(recipe.hidden, width)
    weights["blocks.0.mlp.b_out"] = torch.zeros(width)
    weights["unembed.W_U"] = normal(width, recipe.p + 1)
    weights["unembed.b_U"] = torch.zeros(recipe.p + 1)
    return weights


def logits(weights: Weights, x: Tensor, y: Tensor) -> Tensor:  # [n], [n] -> [n, p + 1]
    """The transformer's output at the last position of [x, y, =], for all pairs at once."""
    embedding, position = weights["embed.W_E"], weights["pos_embed.W_pos"]
    p = len(embedding) - 1
    equals = embedding[p] + position[2]  # [d]
    inputs = torch.cat([embedding[:p] + position[0], embedding[:p] + position[1], equals[None]])  # [2p+1, d]

    def project(name: str, stream: Tensor) -> Tensor:  # [m, d] -> [m, heads, head]
        weight, bias = weights[f"blocks.0.attn.W_{name}"], weights[f"blocks.0.attn.b_{name}"]
        return torch.einsum("md,hde->mhe", stream, weight) + bias

    query = project("Q", equals[None])[0]  # [heads, head]
    scores = (project("K", inputs) * query).sum(-1) / math.sqrt(query.shape[-1])  # [2p+1, heads]
    values = project("V", inputs)  # [2p+1, heads, head]
    last = torch.full_like(x, 2 * p)
    where = torch.stack([x, y + p, last], dim=1)  # [n, 3]
    pattern = scores[where].softmax(dim=1)  # [n, 3, heads]
    mixed = torch.stack([pattern[:, t, :, None] * values[where[:, t]] for t in range(3)]).sum(0)
    output = weights["blocks.0.attn.W_O"]
    stream = equals + mixed.flatten(1) @ output.flatten(0, 1) + weights["blocks.0.attn.b_O"]
    hidden = torch.relu(torch.addmm(weights["blocks.0.mlp.b_in"], stream, weights["blocks.0.mlp.W_in"]))
    stream = stream + torch.addmm(weights["blocks.0.mlp.b_out"], hidden, weights["blocks.0.mlp.W_out"])
    return torch.addmm(weights["unembed.b_U"], stream, weights["unembed.W_U"])


def train(recipe: Recipe, path: Path, report: Report | None = None, keep_every: int = 0) -> Path:
    """Train, or go on training, and write the checkpoint to ``path`` (safetensors).

    The state is kept beside it as ``path.state`` every few hundred steps; a run that was killed resumes
    from there and ends with the weights of an uninterrupted one. With ``keep_every``, checkpoints of the
    beginning and of every so many steps are written beside it, as NAME-STEP.safetensors.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    train_set, test_set = split(p=recipe.p, fraction=recipe.fraction, seed=0)
    weights = {name: weight.requires_grad_() for name, weight in initial_weights(recipe).items()}
    optimizer = torch.optim.AdamW(
        weights.values(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay,
        fused=True,
    )  # fmt: skip
    state = TrainingState(path.with_suffix(".state"), asdict(recipe), weights, optimizer)
    step, solved = state.restore(step=0, solved=-1).values()
    x, y, labels = train_set.inputs[:, 0], train_set.inputs[:, 1], train_set.labels
    started, first, accuracy = time.monotonic(), step, 0.0
    if keep_every and step == 0:
        _write(_step_path(path, 0), recipe, weights, {"steps_taken": 0})
    while step < recipe.steps and not (solved >= 0 and step >= solved + recipe.stop_after):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (step + 1) / recipe.warm_up)
        optimizer.zero_grad(set_to_none=True)
        # float64 where the loss of a fitted example would otherwise round to zero
        loss = torch.nn.functional.cross_entropy(logits(weights, x, y).double(), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if keep_every and step % keep_every == 0:
            _write(_step_path(path, step), recipe, weights, {"steps_taken": step})
        if step % CHECK_EVERY == 0:
            accuracy = _accuracy(weights, test_set.inputs, test_set.labels)
            if accuracy < recipe.stop_at_accuracy:
                solved = -1
            elif solved < 0:
                solved = step
            state.save(step=step, solved=solved)
            if report:
                report(step, loss.item(), accuracy)
    rate = (step - first) / max(time.monotonic() - started, 1e-9)
    accuracy = _accuracy(weights, test_set.inputs, test_set.labels)
    measured = {"steps_taken": step, "test_accuracy": accuracy, "steps_per_second": round(rate, 1)}
    _write(path, recipe, weights, measured)
    discard_state(state.path)
    return path


def _write(path: Path, recipe: Recipe, weights: Weights, measured: dict[str, float]) -> None:
    """Write a checkpoint, with its recipe and what was measured in its metadata."""
    metadata = {
        "architecture": json.dumps({"family": FAMILY, "layers": 1, "heads": recipe.heads, "p": recipe.p}),
        "training": json.dumps(asdict(recipe) | measured | {"torch": torch.__version__}),
    }
    tensors = {name: weight.detach().contiguous() for name, weight in weights.items()}
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


def _step_path(path: Path, step: int) -> Path:
    """Checkpoint of one step, beside the last one."""
    return path.with_name(f"{path.stem}-{step:06d}{path.suffix}")


@torch.no_grad()
def _accuracy(weights: Weights, tokens: Tensor, labels: Tensor) -> float:
    predicted = logits(weights, tokens[:, 0], tokens[:, 1]).argmax(-1)
    return (predicted == labels).double().mean().item()
