"""Sections in a row, with norms in one step, put out what they do one by one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import interbasis
from interbasis.network.chain import SectionChain, norm_step
from interbasis.network.cores import Variance
from interbasis.network.network import Network
from reference import relative_error

pytest.importorskip("transformers")
from tiny_models import random_model, tokens


def norms(network: Network) -> list[int]:
    """Indices of the sections that begin a norm."""
    return [k for k, section in enumerate(network.sections) if isinstance(section.core, Variance)]


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gptj"])
def test_norms_in_one_step_are_both_sections(family: str) -> None:
    network = interbasis.from_hf(random_model(family)).double()
    inputs = tokens(3, 7)
    fs = network.activations(inputs)
    chain, sections = SectionChain(network.sections), network.sections
    assert norms(network)
    for k in norms(network):
        step = norm_step(sections[k], sections[k + 1])
        assert step is not None
        assert relative_error(step(fs[k]), fs[k + 2]) <= 1e-12
        assert torch.equal(chain.run(fs[k], k, k + 1), fs[k + 1])  # half of a norm
    for first, last in ((0, len(sections)), (1, len(sections) - 1), (2, 2), (1, 2)):
        assert relative_error(chain.run(fs[first], first, last), fs[last]) <= 1e-12


@pytest.mark.parametrize(
    "change",
    [
        lambda first, second: (first, replace(second, write=2 * second.write)),
        lambda first, second: (first, replace(second, read=2 * second.read)),
        lambda first, second: (replace(first, read=2 * first.read), second),
        lambda first, second: (replace(first, read=first.read + 1), second),
        lambda first, second: (first, replace(second, skip=second.skip + 1)),
        lambda first, second: (second, first),
    ],
)
def test_other_sections_are_no_norm(change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    network = interbasis.from_hf(random_model("gpt2"))
    k = norms(network)[0]
    first, second = network.sections[k : k + 2]
    assert norm_step(first, second) is not None
    assert norm_step(*change(first, second)) is None
