"""Attention with rotary positions: sums with signs, and key terms by few functions of the position."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import activations, as_general, attention_section, batch_moments, normal, seeded
from interbasis.network.cores import AttentionShape, Rotary
from interbasis.network.cores.attention import key_brackets, turned_edges
from interbasis.network.cores.attention.key_brackets import band
from interbasis.network.cores.core import into_groups
from interbasis.numerics.integration import rule
from reference import relative_error

CLOSE = 1e-10


@pytest.mark.parametrize("small_blocks", [True, False])
@given(
    causal=st.booleans(),
    heads=st.integers(1, 3),
    head=st.integers(2, 6),
    positions=st.integers(2, 7),
    groups=st.integers(1, 3),
    turned=st.integers(1, 3),
    cap=st.sampled_from([None, 0.7]),
    window=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 10_000),
)
def test_rotary_sums_with_signs_are_those_of_the_general_path(
    small_blocks, causal, heads, head, positions, groups, turned, cap, window, seed
):
    """At some positions of each sample, in groups of any size, by blocks that skip unseen keys."""
    rotary = Rotary(tuple(0.9**i for i in range(min(turned, head // 2))), 1.3)
    shape = AttentionShape(heads, head, causal, cap=cap, window=window if causal else None, rotary=rotary)
    section = attention_section(shape, False, seed, groups)
    f, integral = activations(section, 2, positions, seed=seed + 3), rule("quadrature", 2)
    u, everywhere = f @ section.read.T, slice(0, positions)
    each = as_general(section).core.attributions(u, f, section.read, everywhere, integral)
    each = each.unflatten(1, (2, positions)).permute(1, 2, 0, 3)  # [n, S, c_out, r]
    count = seed % positions + 1
    order = torch.stack([torch.randperm(positions, generator=seeded(seed + k))[:count] for k in range(2)])
    at = order.sort(1).values
    chosen = each.gather(1, at[:, :, None, None].expand(-1, -1, *each.shape[2:])).flatten(0, 1)
    with pytest.MonkeyPatch.context() as patch:
        if small_blocks:
            patch.setattr(turned_edges, "POSITIONS_PER_BLOCK", 2)
            patch.setattr(turned_edges, "MAX_ELEMENTS", 40)
        for size in {1, 2, count, 2 * count}:
            signs = into_groups(normal(2 * count, 2, seed=seed).sign(), size)  # [groups, g, R]
            found = section.core.signed_attributions_at(u, f, section.read, at, integral, signs)
            wanted = torch.einsum("gtcj,gtr->cgrj", into_groups(chosen, size), signs).flatten(1, 2)
            assert relative_error(found, wanted) <= CLOSE


@pytest.mark.parametrize("length", [128, 384])
@pytest.mark.parametrize("highest", [0.0, 1e-4, 0.03, 0.3, 1.0])
def test_few_functions_span_a_band_of_frequencies(highest, length):
    functions = key_brackets.band(length, highest)
    assert functions.shape[1] <= min(length, 2 * highest * length / math.pi + 2 * key_brackets.MORE_FUNCTIONS)
    angle = torch.arange(length).double()[:, None] * 2 * highest * torch.linspace(0, 1, 101).double()
    for wave in (angle.cos(), angle.sin()):
        assert (functions @ (functions.T @ wave) - wave).abs().max() <= 1e-12


@pytest.mark.parametrize("kind", [{}, {"causal": False}, {"window": 60}])
@pytest.mark.parametrize("pairs", [12, 10])
def test_slow_coordinates_by_few_functions_give_the_same_moments(pairs, kind, monkeypatch):
    """Key–key terms without a sum for every key, for full and partial rotary positions."""
    monkeypatch.setattr(key_brackets, "KEYS_AT_ONCE", 64)
    rotary = Rotary(tuple(0.5 * 300.0 ** (-i / pairs) for i in range(pairs)), 1.1)
    section = attention_section(AttentionShape(1, 24, rotary=rotary, **kind))
    f = activations(section, 2, 150)
    u, metric, at = f @ section.read.T, normal(24, 24) @ normal(24, 24).T, slice(0, 150)
    made = []
    monkeypatch.setattr(key_brackets, "band", lambda *key: made.append(key) or band(*key))
    found = batch_moments(section.core, u, at, metric)
    assert made
    monkeypatch.setattr(key_brackets, "WORTH_WHILE", 0.0)
    made.clear()
    wanted = batch_moments(section.core, u, at, metric)
    assert not made
    assert relative_error(found.gram, wanted.gram) <= 1e-12
