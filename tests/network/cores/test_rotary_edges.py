"""Attention with rotary positions: sums with signs."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases import (
    HEADS_AND_KEY_HEADS,
    activations,
    as_general,
    attention_section,
    normal,
    seeded,
)
from interbasis.network.cores import AttentionShape, Rotary
from interbasis.network.cores.attention import edges, rotary_edges, slow_turns
from interbasis.network.cores.attention.heads import Heads
from interbasis.network.cores.core import into_groups
from interbasis.numerics.integration import rule
from reference import relative_error

CLOSE = 1e-10
Order = type[rotary_edges.TurnedQueries]


@pytest.mark.parametrize("small_blocks", [True, False])
@pytest.mark.parametrize("order", [rotary_edges.FewQueries, rotary_edges.ManyQueries])
@given(
    causal=st.booleans(),
    heads=st.sampled_from(HEADS_AND_KEY_HEADS),
    head=st.integers(2, 6),
    positions=st.integers(2, 7),
    turned=st.integers(1, 3),
    fast=st.integers(0, 3),
    cap=st.sampled_from([None, 0.7]),
    window=st.sampled_from([None, 1, 3]),
    sinks=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_rotary_sums_with_signs_are_those_of_the_general_path(
    small_blocks: bool, order: Order, causal: bool, heads: tuple[int, int | None], head: int, positions: int,
    turned: int, fast: int, cap: float | None, window: int | None, sinks: bool, seed: int,
) -> None:  # fmt: skip
    """At some positions of each sample, in groups of any size, by blocks that skip unseen keys.

    Both orders of summation, for few queries and for many, with any number of pairs in brackets.
    """
    pairs = min(turned, head // 2)
    rotary = Rotary(tuple(0.9 ** (i * (-1) ** i) for i in range(pairs)), 1.3)
    kind: dict[str, Any] = {"cap": cap, "window": window if causal else None, "rotary": rotary}
    kind["sinks"] = (0.4,) * heads[0] if sinks else None
    shape = AttentionShape(heads[0], head, causal, **kind, key_heads=heads[1])
    section: Any = attention_section(shape, seed=seed)
    f, integral = activations(section, 2, positions, seed=seed + 3), rule("quadrature", 2)
    u, everywhere = f @ section.read.T, slice(0, positions)
    each = as_general(section).core.attributions(u, f, section.read, everywhere, integral)
    each = each.unflatten(1, (2, positions)).permute(1, 2, 0, 3)  # [n, S, c_out, r]
    count = seed % positions + 1
    drawn = torch.stack([torch.randperm(positions, generator=seeded(seed + k))[:count] for k in range(2)])
    at = drawn.sort(1).values
    chosen = each.gather(1, at[:, :, None, None].expand(-1, -1, *each.shape[2:])).flatten(0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges, "turned_queries", lambda _: order)
        patch.setattr(rotary_edges, "fast_pairs", lambda *_: min(fast, pairs))
        if small_blocks:
            patch.setattr(slow_turns, "ROWS_PER_PRODUCT", 2)
            patch.setattr(rotary_edges, "MAX_PRODUCT_ELEMENTS", 40)
            patch.setattr("interbasis.network.cores.attention.heads.POSITIONS_PER_BLOCK", 2)
        for size in {1, 2, count, 2 * count}:
            signs = into_groups(normal(2 * count, 2, seed=seed).sign(), size)  # [groups, g, R]
            found = section.core.signed_attributions_at(u, f, section.read, at, integral, signs)
            wanted = torch.einsum("gtcj,gtr->cgrj", into_groups(chosen, size), signs).flatten(1, 2)
            assert relative_error(found, wanted) <= CLOSE


def long_rotary(base: float, kind: dict[str, Any] | None = None) -> tuple[Any, Tensor, Tensor]:
    """A head of 64 with positions up to 256."""
    rotary = Rotary(tuple(base ** (-i / 32) for i in range(32)))
    section = attention_section(AttentionShape(1, 64, rotary=rotary, **(kind or {})))
    f = activations(section, 1, 256)
    return section, f, f @ section.read.T


@pytest.mark.parametrize("base", [1e4, 1e6])
@pytest.mark.parametrize("kind", [{}, {"causal": False}, {"window": 60}, {"cap": 0.7}])
def test_all_orders_give_the_same_signed_sums(
    base: float, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets for all, the chosen or no pairs: in float64 to 1e-10, and float32 keeps its digits."""
    section, f, u = long_rotary(base, kind)
    signs = into_groups(normal(256, 1, seed=5).sign(), 256)
    at = torch.arange(256)[None]

    def sums(dtype: torch.dtype, order: Order = rotary_edges.ManyQueries, fast: int | None = None) -> Tensor:
        monkeypatch.setattr(edges, "turned_queries", lambda _: order)
        choice = slow_turns.fast_pairs if fast is None else lambda *_: fast
        monkeypatch.setattr(rotary_edges, "fast_pairs", choice)
        parts = (part.to(dtype) for part in (u, f, section.read))
        return section.core.signed_attributions_at(*parts, at, rule("gradient"), signs.to(dtype)).double()

    wanted = sums(torch.float64, fast=32)
    for orders in ({"order": rotary_edges.FewQueries}, {"fast": 0}, {"fast": 12}, {}, {"fast": 32}):
        assert relative_error(sums(torch.float64, **orders), wanted) <= CLOSE
        assert relative_error(sums(torch.float32, **orders), wanted) <= 3e-6


def keys_of(shape: AttentionShape, count: int, dtype: torch.dtype = torch.float64) -> Heads:
    """Heads with so many keys and as many queries."""
    u = normal(1, count, sum(shape.sizes)).to(dtype)
    return Heads.from_read_outs(shape, u, torch.arange(count)[None])


@pytest.mark.parametrize("end", [100, 1000])
@pytest.mark.parametrize(("pairs", "fast"), [(3, 0), (3, 1), (2, 0), (2, 1), (2, 2)])
def test_slow_turns_are_combinations_of_few_functions_of_the_position(
    pairs: int, fast: int, end: int
) -> None:
    """The fastest pair is in the middle; two pairs leave two of six coordinates that are not turned."""
    rotary = Rotary((0.01, 1.0, 0.1)[:pairs], 1.2)
    turns = slow_turns.SlowTurns.from_heads(keys_of(AttentionShape(1, 6, rotary=rotary), end), fast)
    assert sorted([*turns.slow, *turns.fast]) == list(range(6))
    assert turns.fast.tolist() == [[], [1, 1 + pairs], [0, 2, 1, 3]][fast]
    assert len(turns.matrices) <= 7 - 2 * fast
    x = normal(end, 6)
    found = torch.einsum("tm,mij,tj->ti", turns.functions[:end], turns.matrices, x[:, turns.slow])
    assert relative_error(found, rotary.turn(x, torch.arange(end))[:, turns.slow]) <= 1e-13


def test_functions_replace_brackets_where_they_save_multiplications() -> None:
    """In heads of 64 at few positions; narrow heads and long sequences have brackets for all pairs."""

    def chosen(width: int, count: int, features: int = 784, dtype: torch.dtype = torch.float32) -> int:
        rotary = Rotary(tuple(1e4 ** (-2 * i / width) for i in range(width // 2)))
        return slow_turns.fast_pairs(keys_of(AttentionShape(1, width, rotary=rotary), count, dtype), features)

    assert 8 <= chosen(64, 128) <= chosen(64, 256) <= 16
    assert chosen(64, 128, dtype=torch.float64) >= chosen(64, 128)
    assert chosen(64, 2048) == 32
    assert chosen(32, 256) == 16


@pytest.mark.parametrize("kind", [{}, {"causal": False}, {"window": 60}, {"cap": 0.7}])
@pytest.mark.parametrize("count", [3, 40])
def test_few_queries_take_another_order_of_sums_with_the_same_result(
    count: int, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen by their number; in float64 to 1e-10, and float32 keeps its digits."""
    section, _, u = long_rotary(1e4, kind)
    at = torch.randperm(256, generator=seeded(count))[:count].sort().values[None]
    signs = into_groups(normal(count, 2, seed=5).sign(), count)
    chosen = []

    def sums(dtype: torch.dtype, order: Order | None = None) -> Tensor:
        def decided(x: Heads) -> Order:
            chosen.append(rotary_edges.turned_queries(x))
            return order or chosen[-1]

        monkeypatch.setattr(edges, "turned_queries", decided)
        parts = (part.to(dtype) for part in (u, normal(1, 256, 300, seed=7), normal(192, 300)))
        found = section.core.signed_attributions_at(*parts, at, rule("gradient"), signs.to(dtype))
        return found.double()

    wanted = sums(torch.float64, rotary_edges.ManyQueries)
    assert relative_error(sums(torch.float64), wanted) <= CLOSE
    assert relative_error(sums(torch.float32), wanted) <= 3e-6
    assert set(chosen) == {rotary_edges.FewQueries}


def test_many_queries_are_not_few() -> None:
    section, _, u = long_rotary(1e4)
    counts = {2: rotary_edges.FewQueries, 64: rotary_edges.FewQueries, 256: rotary_edges.ManyQueries}
    for count, order in counts.items():
        assert (
            rotary_edges.turned_queries(
                Heads.from_read_outs(section.core.shape, u, torch.arange(count)[None])
            )
            is order
        )
