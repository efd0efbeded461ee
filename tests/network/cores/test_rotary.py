"""Attention with rotary positions: sums with signs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import (
    HEADS_AND_KEY_HEADS,
    activations,
    as_general,
    attention_section,
    normal,
    seeded,
)
from interbasis.network.cores import AttentionShape, Rotary
from interbasis.network.cores.attention import (
    causal_blocks,
    edges,
    few_queries,
    function_sums,
    slow_turns,
    turned_edges,
)
from interbasis.network.cores.attention.heads import Heads
from interbasis.network.cores.core import into_groups
from interbasis.numerics.integration import rule
from reference import relative_error

CLOSE = 1e-10


@pytest.mark.parametrize("small_blocks", [True, False])
@pytest.mark.parametrize("fast", [None, 0, 1, "few queries"])
@given(
    causal=st.booleans(),
    heads=st.sampled_from(HEADS_AND_KEY_HEADS),
    head=st.integers(2, 6),
    positions=st.integers(2, 7),
    turned=st.integers(1, 3),
    cap=st.sampled_from([None, 0.7]),
    window=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 10_000),
)
def test_rotary_sums_with_signs_are_those_of_the_general_path(
    small_blocks, fast, causal, heads, head, positions, turned, cap, window, seed
):
    """At some positions of each sample, in groups of any size, by blocks that skip unseen keys.

    ``fast`` pairs of coordinates by brackets, the others by functions, or as for few queries; None is what is
    chosen by operations.
    """
    rotary = Rotary(tuple(0.9**i for i in range(min(turned, head // 2))), 1.3)
    kind = {"cap": cap, "window": window if causal else None, "rotary": rotary}
    section = attention_section(AttentionShape(heads[0], head, causal, **kind, key_heads=heads[1]), seed=seed)
    f, integral = activations(section, 2, positions, seed=seed + 3), rule("quadrature", 2)
    u, everywhere = f @ section.read.T, slice(0, positions)
    each = as_general(section).core.attributions(u, f, section.read, everywhere, integral)
    each = each.unflatten(1, (2, positions)).permute(1, 2, 0, 3)  # [n, S, c_out, r]
    count = seed % positions + 1
    order = torch.stack([torch.randperm(positions, generator=seeded(seed + k))[:count] for k in range(2)])
    at = order.sort(1).values
    chosen = each.gather(1, at[:, :, None, None].expand(-1, -1, *each.shape[2:])).flatten(0, 1)
    with pytest.MonkeyPatch.context() as patch:
        if fast == "few queries":
            patch.setattr(edges, "are_few", lambda *_: True)
        elif fast is not None:
            patch.setattr(edges, "are_few", lambda *_: False)
            patch.setattr(slow_turns, "first_slow", lambda rotary, *_: min(fast, len(rotary.frequencies)))
        if small_blocks:
            patch.setattr(function_sums, "ROWS_AT_ONCE", 2)
            patch.setattr(function_sums, "MIN_POSITIONS", 2)
            patch.setattr(few_queries, "MAX_ELEMENTS", 40)
            patch.setattr(causal_blocks, "POSITIONS_PER_BLOCK", 2)
            patch.setattr(turned_edges, "MAX_ELEMENTS", 40)
        for size in {1, 2, count, 2 * count}:
            signs = into_groups(normal(2 * count, 2, seed=seed).sign(), size)  # [groups, g, R]
            found = section.core.signed_attributions_at(u, f, section.read, at, integral, signs)
            wanted = torch.einsum("gtcj,gtr->cgrj", into_groups(chosen, size), signs).flatten(1, 2)
            assert relative_error(found, wanted) <= CLOSE


def long_rotary(base, kind=None):
    """A head of 64 with positions up to 256, where slow coordinates are worth while in float32."""
    rotary = Rotary(tuple(base ** (-i / 32) for i in range(32)))
    section = attention_section(AttentionShape(1, 64, rotary=rotary, **(kind or {})))
    f = activations(section, 1, 256)
    return section, f, f @ section.read.T


@pytest.mark.parametrize("base", [1e4, 1e6])
@pytest.mark.parametrize("kind", [{}, {"causal": False}, {"window": 60}, {"cap": 0.7}])
def test_slow_coordinates_by_few_functions_give_the_same_signed_sums(base, kind, monkeypatch):
    """In float64 to 1e-10, whichever coordinates are slow."""
    section, f, u = long_rotary(base, kind)
    signs = into_groups(normal(256, 1, seed=5).sign(), 256)
    at, found = torch.arange(256)[None], {}
    for fast in (32, 20, 8, 0):
        monkeypatch.setattr(slow_turns, "first_slow", lambda *_, fast=fast: fast)
        found[fast] = section.core.signed_attributions_at(u, f, section.read, at, rule("gradient"), signs)
    for fast in (20, 8, 0):
        assert relative_error(found[fast], found[32]) <= CLOSE


def test_slow_coordinates_are_chosen_where_they_save_operations_and_float32_keeps_its_digits():
    section, _, u = long_rotary(1e5)
    rotary = section.core.shape.rotary
    chosen = {
        (end, dtype): slow_turns.first_slow(rotary, 64, end, (0.6 * end, 769), dtype)
        for end in (128, 256, 1024)
        for dtype in (torch.float32, torch.float64)
    }
    assert chosen[128, torch.float32] < chosen[256, torch.float32] < 32
    assert chosen[1024, torch.float32] == 32  # products with all keys would cost more than brackets
    assert chosen[256, torch.float64] == 32  # more functions
    signs = into_groups(normal(256, 1, seed=5).sign(), 256)
    wide = normal(192, 769)

    def sums(dtype):
        parts = (part.to(dtype) for part in (u, normal(1, 256, 769, seed=7), wide))
        at, sign = torch.arange(256)[None], signs.to(dtype)
        return section.core.signed_attributions_at(*parts, at, rule("gradient"), sign).double()

    assert slow_turns.first_slow(rotary, 64, 256, (0.6 * 256, 784), torch.float32) < 32
    assert relative_error(sums(torch.float32), sums(torch.float64)) <= 3e-6


@pytest.mark.parametrize("kind", [{}, {"causal": False}, {"window": 60}, {"cap": 0.7}])
@pytest.mark.parametrize("count", [3, 40])
def test_few_queries_take_another_order_of_sums_with_the_same_result(count, kind, monkeypatch):
    """Chosen by operations; in float64 to 1e-10, and float32 keeps its digits."""
    section, _, u = long_rotary(1e4, kind)
    at = torch.randperm(256, generator=seeded(count))[:count].sort().values[None]
    signs = into_groups(normal(count, 2, seed=5).sign(), count)
    chosen = []
    are_few = few_queries.are_few

    def sums(dtype, few=None):
        def decided(*given):
            chosen.append(are_few(*given))
            return chosen[-1] if few is None else few

        monkeypatch.setattr(edges, "are_few", decided)
        parts = (part.to(dtype) for part in (u, normal(1, 256, 300, seed=7), normal(192, 300)))
        found = section.core.signed_attributions_at(*parts, at, rule("gradient"), signs.to(dtype))
        return found.double()

    wanted = sums(torch.float64, few=False)
    assert relative_error(sums(torch.float64), wanted) <= CLOSE
    assert relative_error(sums(torch.float32), wanted) <= 3e-6
    assert all(chosen)


def test_many_queries_are_not_few():
    section, _, u = long_rotary(1e4)

    def few(shape, count):
        at = torch.linspace(0, 255, count).long()[None]
        return few_queries.are_few(Heads.of(shape, u, at), 769)

    assert [few(section.core.shape, count) for count in (2, 64, 256)] == [True, True, False]
    assert not few(AttentionShape(1, 64), 2)  # attention without rotary positions
