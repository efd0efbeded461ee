"""Attention of a real model with rotary positions and grouped keys, against the general path in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import interbasis
from cases import as_general, batch_moments, normal
from interbasis.network.cores import Attention
from interbasis.numerics.integration import rule
from reference import relative_error

transformers = pytest.importorskip("transformers")


TEXT = "The cat sat on the mat, and the dog, who had been watching it from the door, sat down beside it. "


def test_moments_and_edges_of_smollm2_are_those_of_the_general_path(
    real_model: Callable[[str], Path],
) -> None:
    folder = real_model("smollm2")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, num_hidden_layers=2, dtype=torch.float64
    )
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(2 * TEXT, return_tensors="pt")["input_ids"]
    network = interbasis.from_hf(model, 1)
    (index,) = [k for k, section in enumerate(network.sections) if isinstance(section.core, Attention)]
    section = network.sections[index]
    core: Any = section.core
    general = as_general(section).core
    assert core.shape.rotary is not None
    with torch.no_grad():
        f = network.activations_at(index, tokens)
    few = normal(f.shape[2], 20, seed=2) / f.shape[2] ** 0.5  # some directions as features
    u, features, read = f @ section.read.T, f @ few, section.read @ few
    start, metric = slice(0, 5), section.write.T @ section.write
    found, wanted = (batch_moments(one, u[:, start], start, metric) for one in (core, general))
    assert relative_error(found.gram, wanted.gram) <= 1e-10
    assert relative_error(found.local, wanted.local) <= 1e-10
    by_token, wanted = (
        one.attributions(u[:, start], features[:, start], read, start, rule()) for one in (core, general)
    )
    assert relative_error(by_token, wanted) <= 1e-10
    every = slice(0, tokens.shape[1])
    assert 2 * every.stop >= core.shape.turned  # enough queries that the sum over them goes inside
    each = core.attributions(u, features, read, every, rule())
    signs = normal(1, every.stop, 1).sign()
    summed = core.signed_attributions(u, features, read, every, rule(), signs)
    assert relative_error(summed, torch.einsum("ctj,tr->crj", each, signs[0])) <= 1e-10
