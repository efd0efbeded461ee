"""A transformer trained on two unrelated tasks at once: x + y mod p, and u · v mod q on other tokens.

A sequence is [x, y, u, v, =]; at its last position the network puts out p + q logits, one set per task. The
pairs (x, y) and (u, v) are drawn independently, u and v without 0, and some pairs of either task are kept for
testing. Nothing but training keeps the tasks apart: heads and neurons are shared.
"""

import math
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor, nn

from interbasis.base.records import Record
from interbasis.models.modadd import from_weights
from interbasis_studies.training.modadd import Recipe, Weights, initial_weights
from two_tasks import TwoTasks

POSITIONS = 5
BATCH = 512


class TwoTaskTransformerRecipe(Record):
    """Everything that decides the trained network."""

    seed: int = 0
    p: int = Field(23, ge=3)
    q: int = Field(23, ge=3)
    """A prime."""
    width: int = 64
    hidden: int = 128
    steps: int = Field(1500, ge=0)
    """0 gives the network at initialisation."""
    fraction: float = Field(0.8, gt=0, lt=1)
    """Share of either task's pairs that it is trained on."""
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    samples: int = 4000
    test_samples: int = 1000


def train_two_task_transformer(recipe: TwoTaskTransformerRecipe | None = None) -> TwoTasks:
    """Train one block of attention and MLP on both tasks.

    Args:
        recipe: Settings of the training; default: 1,500 steps of AdamW, about 20 seconds.

    Returns:
        The network in float64, with training sequences and test sequences whose pairs it has not seen.
    """
    recipe = recipe or TwoTaskTransformerRecipe()
    generator = torch.Generator().manual_seed(recipe.seed)
    training, test = [], []
    for numbers in (torch.arange(recipe.p), torch.arange(1, recipe.q)):
        pairs = torch.cartesian_prod(numbers, numbers)
        order = torch.randperm(len(pairs), generator=generator)
        count = int(recipe.fraction * len(pairs))
        training.append(pairs[order[:count]])
        test.append(pairs[order[count:]])
    weights = {name: weight.requires_grad_() for name, weight in _initial(recipe, generator).items()}
    optimizer = torch.optim.AdamW(
        weights.values(), recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    for _ in range(recipe.steps):
        tokens, labels = _drawn(recipe, training, BATCH, generator)
        first, second = _logits(weights, tokens).double().split([recipe.p, recipe.q], dim=1)
        loss = sum(nn.functional.cross_entropy(z, labels[:, k]) for k, z in enumerate((first, second)))
        assert isinstance(loss, Tensor)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inputs, labels = _drawn(recipe, training, recipe.samples, generator)
    test_inputs, test_labels = _drawn(recipe, test, recipe.test_samples, generator)
    network = from_weights({name: weight.detach() for name, weight in weights.items()}).double()
    network = replace(network, family="two tasks", modulus=None, token_names=())
    tasks = torch.arange(2).repeat_interleave(torch.tensor([recipe.p, recipe.q]))
    return TwoTasks(network, inputs, labels, test_inputs, test_labels, tasks)


def _drawn(
    recipe: TwoTaskTransformerRecipe, pairs: list[Tensor], count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:  # [count, 5], [count, 2]
    x, u = (task[torch.randint(len(task), (count,), generator=generator)] for task in pairs)
    equals = torch.full((count, 1), recipe.p + recipe.q)
    labels = torch.stack([x.sum(1) % recipe.p, u.prod(1) % recipe.q], dim=1)
    return torch.cat([x, u + recipe.p, equals], dim=1), labels


def _initial(recipe: TwoTaskTransformerRecipe, generator: torch.Generator) -> Weights:
    numbers = recipe.p + recipe.q
    weights = initial_weights(Recipe(recipe.seed, numbers, recipe.width, hidden=recipe.hidden))
    positions = torch.randn(POSITIONS, recipe.width, generator=generator) / math.sqrt(recipe.width)
    return weights | {
        "pos_embed.W_pos": positions,
        "unembed.W_U": weights["unembed.W_U"][:, :numbers].clone(),
        "unembed.b_U": weights["unembed.b_U"][:numbers].clone(),
    }


def _logits(weights: Weights, tokens: Tensor) -> Tensor:  # [n, 5] -> [n, p + q]
    """Logits at the last position, by attention of that position alone."""
    stream = weights["embed.W_E"][tokens] + weights["pos_embed.W_pos"]
    last = stream[:, -1]

    def project(name: str, activations: Tensor) -> Tensor:
        product = torch.einsum("...d,hde->...he", activations, weights[f"blocks.0.attn.W_{name}"])
        return product + weights[f"blocks.0.attn.b_{name}"]

    query, keys, values = project("Q", last), project("K", stream), project("V", stream)
    pattern = (torch.einsum("nhe,nthe->nht", query, keys) / math.sqrt(query.shape[-1])).softmax(-1)
    mixed = torch.einsum("nht,nthe->nhe", pattern, values)
    last = last + torch.einsum("nhe,hed->nd", mixed, weights["blocks.0.attn.W_O"])
    last = last + weights["blocks.0.attn.b_O"]
    hidden = torch.relu(last @ weights["blocks.0.mlp.W_in"] + weights["blocks.0.mlp.b_in"])
    last = last + hidden @ weights["blocks.0.mlp.W_out"] + weights["blocks.0.mlp.b_out"]
    return last @ weights["unembed.W_U"] + weights["unembed.b_U"]
