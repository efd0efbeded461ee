"""Modular addition, whose features are known: waves cos(kx), sin(kx), cos(ky), … of a few frequencies k.

A transformer is trained on x + y mod p within seconds. Which frequencies it uses is established by
intervening on its embedding: frequencies are taken out one at a time, and k is used if the loss rises. A
feature, as a function of x and y, is then a sum of waves, and its *share* in k is the part of its variance in

    the waves (k, 0), (0, k), (k, k), (k, −k) of its two-dimensional Fourier transform.

Over all p² pairs waves are uncorrelated, so that shares add up to 1 with what lies in mixed frequencies.
"""

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor

from interbasis.analysis.features.fourier_labels import surfaces
from interbasis.analysis.modules.modules import NO_MODULE, find_modules
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Record
from interbasis.data.modadd import Labelled, pairs, split
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.models.modadd import Embedding, load
from interbasis.network.network import Network
from interbasis_studies.known.records import RecoveryScores
from interbasis_studies.training.modadd import Recipe, train

USED = 0.05
"""Taking out a frequency that is used raises the cross-entropy by at least so much."""
CLEAR = 0.9
"""A feature with this share in a frequency stands for it."""


class ModularAdditionSpec(Record):
    """Settings that decide the trained transformer."""

    p: int = Field(43, ge=5)
    width: int = 64
    hidden: int = 192
    steps: int = Field(1250, ge=0)
    """Steps of AdamW; 0 gives the network at initialisation. With the defaults, 500 and more generalise."""
    fraction: float = 0.7
    """Share of the pairs that it is trained on."""
    learning_rate: float = 3e-3


@dataclass(frozen=True, eq=False)
class ModularAddition:
    """A trained transformer, its training and test pairs, and the frequencies that it uses."""

    network: Network
    training: Labelled
    test: Labelled
    frequencies: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        """Accuracy on the test pairs."""
        right = self.network(self.test.inputs).argmax(-1) == self.test.labels
        return right.double().mean().item()


def train_modular_addition(spec: ModularAdditionSpec | None = None, seed: int = 0) -> ModularAddition:
    """Train a transformer on x + y mod p, and find the frequencies that it uses.

    Args:
        spec: What to train; default: p = 43, width 64, 1,250 steps, about 10 seconds.
        seed: Seed of the initial weights.

    Returns:
        The network in float64 with its pairs and frequencies.
    """
    spec = spec or ModularAdditionSpec()
    recipe = Recipe(
        seed=seed, p=spec.p, width=spec.width, hidden=spec.hidden, fraction=spec.fraction,
        learning_rate=spec.learning_rate, steps=spec.steps, stop_at_accuracy=math.inf,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        network = load(train(recipe, Path(folder) / "trained.safetensors")).double()
    return with_frequencies(network, *split(spec.p, spec.fraction))


def with_frequencies(network: Network, training: Labelled, test: Labelled) -> ModularAddition:
    """Find the frequencies that a modular-addition network uses, by taking each out of its embedding."""
    p = network.modulus
    if p is None:
        raise InterbasisError(f"expected a modular-addition network, received {network}")
    everything = pairs(p)
    untouched = _loss(network, everything)
    costs = [_loss(_without(network, k), everything) - untouched for k in range(1, p // 2 + 1)]
    used = tuple(k for k, cost in enumerate(costs, 1) if cost >= USED)
    return ModularAddition(network, training, test, used)


def _loss(network: Network, data: Labelled) -> float:
    return torch.nn.functional.cross_entropy(network(data.inputs), data.labels).item()


def _without(network: Network, frequency: int) -> Network:
    """The network whose embedding of numbers lacks one frequency."""
    prefix = network.prefix
    assert isinstance(prefix, Embedding)
    assert prefix.positions is not None
    numbers = prefix.tokens[:-1].detach()
    angles = 2 * math.pi * frequency / len(numbers) * torch.arange(len(numbers), dtype=numbers.dtype)
    waves = torch.linalg.qr(torch.stack([angles.cos(), angles.sin()], dim=1)).Q  # [p, 2]
    tokens = torch.cat([numbers - waves @ (waves.T @ numbers), prefix.tokens[-1:].detach()])
    return Network(Embedding(tokens, prefix.positions.detach()), network.sections, network.tail)


def frequency_shares(network: Network, graph: InteractionGraph, layer: int) -> Tensor:  # [features, K]
    """Share of every feature's variance in each frequency, for a layer without its constant."""
    basis = graph.layers[layer]
    functions = surfaces(network, basis)[basis.first_feature :]
    p = functions.shape[-1]
    power = torch.fft.fft2(functions.double()).abs().square()
    power[:, 0, 0] = 0
    total = power.sum((1, 2)).clamp_min(torch.finfo(torch.float64).tiny)
    columns = []
    for k in range(1, p // 2 + 1):
        places = {(a % p, b % p) for a in (-k, 0, k) for b in (-k, 0, k)}
        columns.append(torch.stack([power[:, a, b] for a, b in sorted(places)]).sum(0))
    return torch.stack(columns, dim=1) / total[:, None]


def score_modular_addition(known: ModularAddition, graph: InteractionGraph, seed: int = 0) -> RecoveryScores:
    """Compare features and modules with the frequencies.

    Args:
        known: The network with its frequencies.
        graph: A graph of it.
        seed: Seed of the partition into modules.

    Returns:
        Scores of features, coverage of the frequencies used, and modules; the others are NaN: which waves
        act on which is not known.
    """
    inner = range(len(graph.layers) - 1)
    shares = [frequency_shares(known.network, graph, k) for k in inner]
    used = set(known.frequencies)
    slots = [k - 1 for k in known.frequencies for _ in range(2)]  # a cosine and a sine, of arbitrary phases
    matched, covered = [], []
    for share in shares if used else ():
        gain = share[:, slots].numpy()
        matched.append(gain[linear_sum_assignment(-gain)].sum() / len(slots))
        clear = {int(k) + 1 for k in share.argmax(1)[share.amax(1) >= CLEAR]}
        covered.append(len(clear & used) / len(used))
    modules = find_modules(graph, seed=seed, seeds=0, null_graphs=0, resolutions=())
    members, frequencies = [], []
    for k in inner:
        assigned = modules.assignment[k][graph.layers[k].first_feature :]
        counted = assigned != NO_MODULE
        members += assigned[counted].tolist()
        frequencies += shares[k].argmax(1).numpy()[counted].tolist()
    values = dict.fromkeys(RecoveryScores.model_fields, math.nan) | {
        "matched": float(np.mean(matched)) if used else math.nan,
        "features": torch.cat([share.amax(1) for share in shares]).mean().item(),
        "coverage": sum(covered) / len(covered) if used else math.nan,
        "modules": float(adjusted_mutual_info_score(frequencies, members)),
        "module_count": modules.modules / max(1, len(used)),
    }
    return RecoveryScores(**values)
