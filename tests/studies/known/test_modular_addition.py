"""Waves are found where they were put, and taking out a frequency takes out nothing else."""

import math

import pytest
import torch

import interbasis
from interbasis.data.modadd import split
from interbasis.models.modadd import from_weights
from interbasis_studies.known.modular_addition import (
    ModularAddition,
    ModularAdditionSpec,
    _without,
    frequency_shares,
    score_modular_addition,
    train_modular_addition,
    with_frequencies,
)
from interbasis_studies.training.modadd import Recipe, initial_weights

P, USED = 11, (2, 5)


@pytest.fixture(scope="module")
def known() -> ModularAddition:
    """A transformer whose embedding holds two frequencies in directions of their own."""
    weights = {k: w.double() for k, w in initial_weights(Recipe(p=P, width=16, hidden=24)).items()}
    x = 2 * math.pi / P * torch.arange(P, dtype=torch.float64)
    waves = torch.stack([wave(k * x) for k in USED for wave in (torch.cos, torch.sin)], dim=1)  # [p, 4]
    directions = torch.linalg.qr(
        torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ).Q
    weights["embed.W_E"] = torch.cat([waves @ directions.T, torch.zeros(1, 16, dtype=torch.float64)])
    network = from_weights(weights)
    return with_frequencies(network, *split(P, 0.7))


def test_features_of_a_frequency_have_all_their_variance_there(known: ModularAddition) -> None:
    graph = interbasis.build(known.network, known.training.inputs, basis="neuron", progress=False).graph
    own = graph.layers[0]
    assert own.features == 17
    shares = frequency_shares(known.network, graph, 0)
    assert (shares.sum(1) <= 1 + 1e-12).all()
    used = shares[:, [k - 1 for k in USED]].sum(1)
    assert (used - 1).abs().max() <= 1e-10  # neurons of the embedding see both frequencies and nothing else


def test_taking_out_a_frequency_takes_out_nothing_else(known: ModularAddition) -> None:
    inputs = known.test.inputs
    untouched = known.network(inputs)
    for k in range(1, P // 2 + 1):
        changed = (_without(known.network, k)(inputs) - untouched).abs().max()
        assert changed > 1e-3 if k in USED else changed <= 1e-10


def test_scores(known: ModularAddition) -> None:
    known = type(known)(known.network, known.training, known.test, USED)
    graph = interbasis.build(known.network, known.training.inputs, progress=False).graph
    scores = score_modular_addition(known, graph)
    assert 0 < scores.matched <= 1
    assert scores.edge_precision != scores.edge_precision  # NaN: which waves act on which is not known


def test_training_is_repeatable() -> None:
    spec = ModularAdditionSpec(p=7, width=16, hidden=16, steps=20)
    first, again = (train_modular_addition(spec, seed=1) for _ in range(2))
    assert torch.equal(first.network(first.test.inputs), again.network(first.test.inputs))
    assert 0 <= first.accuracy <= 1
