"""A training step of modular addition: the plain transformer against the one that `interbasis train` uses.

Both in one run, float32, full batch of 3,830 pairs, AdamW included. Seconds are the processor's, so that
other work on the machine matters less.

    python training.py [STEPS]
"""

import math
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from interbasis.data.modadd import split
from interbasis_studies.training.modadd import Recipe, Weights, initial_weights, logits


def plain(weights: Weights, x: Tensor, y: Tensor) -> Tensor:  # [n], [n] -> [n, p + 1]
    """As a textbook writes it: all three positions of every sequence through attention, MLP and output."""
    tokens = torch.stack([x, y, torch.full_like(x, len(weights["embed.W_E"]) - 1)], dim=1)
    stream = weights["embed.W_E"][tokens] + weights["pos_embed.W_pos"]  # [n, 3, d]
    query, key, value = (
        torch.einsum("nsd,hde->nhse", stream, weights[f"blocks.0.attn.W_{name}"])
        + weights[f"blocks.0.attn.b_{name}"][:, None]
        for name in "QKV"
    )
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value  # [n, heads, 3, head]
    stream = stream + torch.einsum("nhse,hed->nsd", mixed, weights["blocks.0.attn.W_O"])
    stream = stream + weights["blocks.0.attn.b_O"]
    inner = torch.relu(stream @ weights["blocks.0.mlp.W_in"] + weights["blocks.0.mlp.b_in"])
    stream = stream + inner @ weights["blocks.0.mlp.W_out"] + weights["blocks.0.mlp.b_out"]
    return (stream @ weights["unembed.W_U"] + weights["unembed.b_U"])[:, -1]


def seconds_per_step(forward: Callable[[Weights, Tensor, Tensor], Tensor], fused: bool, steps: int) -> float:
    weights = {name: weight.requires_grad_() for name, weight in initial_weights(Recipe()).items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-3, betas=(0.9, 0.98), weight_decay=1.0, fused=fused)
    pairs, _ = split(p=113, fraction=0.3, seed=0)
    x, y = pairs.inputs[:, 0], pairs.inputs[:, 1]
    began = 0.0
    for step in range(steps + 2):
        if step == 2:
            began = time.process_time()
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(forward(weights, x, y).double(), pairs.labels).backward()
        optimizer.step()
    return (time.process_time() - began) / steps


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    recipe = Recipe(seed=1)
    weights, some = initial_weights(recipe), torch.arange(50)
    difference = (plain(weights, some, some + 1) - logits(weights, some, some + 1)).abs().max().item()
    print(f"{torch.get_num_threads()} threads; the two differ by {difference:.1e} at most")
    usual, ours = seconds_per_step(plain, False, steps), seconds_per_step(logits, True, steps)
    for name, seconds in (("plain", usual), ("interbasis train", ours)):
        print(f"{name:>16}  {1000 * seconds:7.1f} ms  {1 / seconds:6.1f} steps per second")
    print(f"{usual / ours:.1f} times as fast")
