"""The task of modular addition, z = x + y mod p: all pairs, and the paper's split of them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError

FRACTION = 0.3
"""Share of the pairs in the paper's training set."""


class Labelled(NamedTuple):
    """Inputs and their labels."""

    inputs: Tensor
    labels: Tensor


def pairs(p: int = 113) -> Labelled:
    """All p² sequences [x, y, =], x-major, with labels x + y mod p."""
    x, y = torch.arange(p).repeat_interleave(p), torch.arange(p).repeat(p)
    return Labelled(torch.stack([x, y, torch.full_like(x, p)], dim=1), (x + y) % p)


def split(p: int = 113, fraction: float = FRACTION, seed: int = 0) -> tuple[Labelled, Labelled]:
    """The paper's training and test sets: a random split of all pairs.

    Args:
        p: The modulus.
        fraction: Share of the pairs in the training set.
        seed: Seed of the split.

    Returns:
        (training set, test set), each (inputs, labels).

    Raises:
        InterbasisError: ``fraction`` is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise InterbasisError(f"the training fraction must lie between 0 and 1, not {fraction}")
    everything = pairs(p)
    total = len(everything.labels)
    train = int(total * fraction)
    if not 0 < train < total:
        raise InterbasisError(
            f"{fraction} of the {total} pairs of p = {p} leaves no training or no test pair"
        )
    generator = torch.Generator().manual_seed(seed)
    index: Any = range(total)
    parts = torch.utils.data.random_split(index, [train, total - train], generator)
    indices = [torch.tensor(list(part.indices)) for part in parts]
    training, test = (Labelled(everything.inputs[k], everything.labels[k]) for k in indices)
    return training, test
