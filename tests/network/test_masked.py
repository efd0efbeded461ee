"""Sections whose output features see some of the inputs each, against a loop over the features."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cases import activations, attention_section, normal, seeded
from interbasis.network.cores import AttentionShape, Elementwise, Linear
from interbasis.network.masked import MaskedReadOuts, equal_masks, masked_pass
from interbasis.network.network import NodeLayer, Section
from reference import relative_error


@given(seed=st.integers(0, 999), density=st.sampled_from([0.1, 0.5, 0.9]))
def test_equal_masks_share_their_rows(seed: int, density: float) -> None:
    mask = torch.rand(8, 3, generator=seeded(seed)) < density
    again = torch.zeros_like(mask)
    seen = []
    for columns, rows in equal_masks(mask):
        again[rows[:, None], columns] = True
        seen += rows.tolist()
    assert torch.equal(again, mask)
    assert sorted(seen) == mask.any(1).nonzero()[:, 0].tolist()


@given(seed=st.integers(0, 999), density=st.sampled_from([0.0, 0.2, 0.8, 1.0]))
def test_read_outs_of_few_columns_and_of_all_but_few(seed: int, density: float) -> None:
    f, read = normal(4, 3, 7, seed=seed), normal(5, 7, seed=seed + 1)
    mask = torch.rand(7, generator=seeded(seed)) < density
    found = MaskedReadOuts(f, read).through(mask)
    assert (found - (f * mask) @ read.T).abs().max() <= 1e-13


def section(core: str) -> Section:
    if core == "attention":
        return attention_section(AttentionShape(2, 3))
    nodes = NodeLayer("a", 5), NodeLayer("b", 6)
    hidden = 0 if core == "linear" else 4
    matrices = normal(6, 5), normal(hidden, 5, seed=1), normal(6, hidden, seed=2)
    return Section(*nodes, *matrices, Elementwise(nn.GELU()) if hidden else Linear())


@pytest.mark.parametrize("core", ["linear", "gelu", "attention"])
def test_every_output_feature_sees_its_own_inputs(core: str) -> None:
    one = section(core)
    f = activations(one, 3, 4)
    mask = torch.rand(one.skip.shape, generator=seeded(3)) < 0.5
    mask[1] = mask[0]
    mask[2] = False
    expected = [one(f * mask[i])[..., i] for i in range(len(mask))]
    assert relative_error(masked_pass(one, f, mask), torch.stack(expected, dim=-1)) <= 1e-12
