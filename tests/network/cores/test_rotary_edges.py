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
from interbasis.network.cores.attention import (
    edges,
    rotary_edges,
)
from interbasis.network.cores.core import into_groups
from interbasis.numerics.integration import rule
from reference import relative_error

CLOSE = 1e-10


@pytest.mark.parametrize("small_blocks", [True, False])
@pytest.mark.parametrize("few", [True, False])
@given(
    causal=st.booleans(),
    heads=st.sampled_from(HEADS_AND_KEY_HEADS),
    head=st.integers(2, 6),
    positions=st.integers(2, 7),
    turned=st.integers(1, 3),
    cap=st.sampled_from([None, 0.7]),
    window=st.sampled_from([None, 1, 3]),
    sinks=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_rotary_sums_with_signs_are_those_of_the_general_path(
    small_blocks: bool,
    few: bool,
    causal: bool,
    heads: tuple[int, int | None],
    head: int,
    positions: int,
    turned: int,
    cap: float | None,
    window: int | None,
    sinks: bool,
    seed: int,
) -> None:
    """At some positions of each sample, in groups of any size, by blocks that skip unseen keys.

    Both orders of summation, for few queries and for many.
    """
    rotary = Rotary(tuple(0.9**i for i in range(min(turned, head // 2))), 1.3)
    kind: dict[str, Any] = {"cap": cap, "window": window if causal else None, "rotary": rotary}
    kind["sinks"] = (0.4,) * heads[0] if sinks else None
    shape = AttentionShape(heads[0], head, causal, **kind, key_heads=heads[1])
    section: Any = attention_section(shape, seed=seed)
    f, integral = activations(section, 2, positions, seed=seed + 3), rule("quadrature", 2)
    u, everywhere = f @ section.read.T, slice(0, positions)
    each = as_general(section).core.attributions(u, f, section.read, everywhere, integral)
    each = each.unflatten(1, (2, positions)).permute(1, 2, 0, 3)  # [n, S, c_out, r]
    count = seed % positions + 1
    order = torch.stack([torch.randperm(positions, generator=seeded(seed + k))[:count] for k in range(2)])
    at = order.sort(1).values
    chosen = each.gather(1, at[:, :, None, None].expand(-1, -1, *each.shape[2:])).flatten(0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges, "are_few", lambda *_: few)
        if small_blocks:
            patch.setattr(rotary_edges, "QUERIES_PER_PRODUCT", 2)
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
def test_both_orders_give_the_same_signed_sums(
    base: float, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64 to 1e-10, and brackets of all queries keep the digits of float32."""
    section, f, u = long_rotary(base, kind)
    signs = into_groups(normal(256, 1, seed=5).sign(), 256)
    at = torch.arange(256)[None]

    def sums(few: bool, dtype: torch.dtype) -> Tensor:
        monkeypatch.setattr(edges, "are_few", lambda *_: few)
        parts = (part.to(dtype) for part in (u, f, section.read))
        return section.core.signed_attributions_at(*parts, at, rule("gradient"), signs.to(dtype)).double()

    wanted = sums(False, torch.float64)
    assert relative_error(sums(True, torch.float64), wanted) <= CLOSE
    for few in (True, False):
        assert relative_error(sums(few, torch.float32), wanted) <= 3e-6


@pytest.mark.parametrize("end", [100, 1000])
@pytest.mark.parametrize("pairs", [3, 2])
def test_turns_are_combinations_of_few_functions_of_the_position(pairs: int, end: int) -> None:
    rotary = Rotary(tuple(1e4 ** (-i / pairs) for i in range(pairs)), 1.2)
    shape = AttentionShape(1, 6, rotary=rotary)
    functions, matrices = rotary_edges.position_functions(shape, end, torch.zeros(1).double())
    assert len(matrices) == rotary_edges.function_count(shape, end, torch.float64) <= 7
    x = normal(end, 6)
    found = torch.einsum("tm,mij,tj->ti", functions[:end], matrices, x)
    assert relative_error(found, rotary.turn(x, torch.arange(end))) <= 1e-13


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
    are_few = rotary_edges.are_few

    def sums(dtype: torch.dtype, few: bool | None = None) -> Tensor:
        def decided(*given: Any) -> bool:
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


def test_many_queries_are_not_few() -> None:
    section, _, _ = long_rotary(1e4)
    assert [rotary_edges.are_few(section.core.shape, count) for count in (2, 64, 256)] == [True, True, False]
    assert not rotary_edges.are_few(AttentionShape(1, 64), 2)  # attention without rotary positions
