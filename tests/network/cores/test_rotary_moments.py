"""Key terms of attention with rotary positions: for groups of heads, and by few functions of the position."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases import (
    HEADS_AND_KEY_HEADS,
    activations,
    attention_section,
    batch_moments,
    normal,
    seeded,
)
from interbasis.network.cores import Attention, AttentionShape, Rotary
from interbasis.network.cores.attention import core as attention_core
from interbasis.network.cores.attention import rotary_moments
from interbasis.network.cores.core import Counted
from interbasis.network.section_jacobian import DenseJacobian
from reference import jacobian_gram, relative_error

CLOSE = 1e-10


@pytest.mark.parametrize("keys_per_block", [2, 3, 128])
@pytest.mark.parametrize("causal", [True, False])
@given(
    heads=st.sampled_from(HEADS_AND_KEY_HEADS),
    head=st.integers(2, 6),
    positions=st.integers(2, 7),
    turned=st.integers(1, 3),
    cap=st.sampled_from([None, 0.7]),
    window=st.sampled_from([None, 1, 3]),
    levels=st.integers(0, 3),
    seed=st.integers(0, 10_000),
)
def test_turned_moments_are_those_of_per_sample_jacobians(
    keys_per_block: int,
    causal: bool,
    heads: tuple[int, int | None],
    head: int,
    positions: int,
    turned: int,
    cap: float | None,
    window: int | None,
    levels: int,
    seed: int,
) -> None:
    """Of counted tokens, at some queries of each sample and at the others, by blocks of keys and levels."""
    rotary = Rotary(tuple(0.9 * 0.5**i for i in range(min(turned, head // 2))), 1.3)
    kind: dict[str, Any] = {"cap": cap, "window": window if causal else None, "rotary": rotary}
    shape = AttentionShape(heads[0], head, causal, **kind, key_heads=heads[1])
    section: Any = attention_section(shape, seed=seed)
    f, transform = activations(section, 3, positions, seed=seed + 3), normal(4, 5, seed=seed + 4)
    seen, told = (torch.rand(3, positions, generator=seeded(seed + k)) < 0.7 for k in range(2))
    seen[0, 0] = True
    counted = Counted(seen.double(), told.double())
    jacobian, u = DenseJacobian.from_section(section, transform), section.read_outs(f)
    order = torch.stack([torch.randperm(positions, generator=seeded(seed + k)) for k in range(3)])
    count = seed % (positions - 1) + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rotary_moments, "KEYS_PER_BLOCK", keys_per_block)
        patch.setattr(rotary_moments, "MAX_FACTOR_ELEMENTS", 30)
        patch.setattr(attention_core, "MAX_QUERIES_PER_BLOCK", 2)
        patch.setattr(rotary_moments, "level_bounds", lambda *_: (math.inf, *rotary.frequencies[:levels]))
        parts = [
            section.core.sums_at(u, some.sort(1).values, jacobian.metric, counted)
            for some in (order[:, :count], order[:, count:])
        ]
    sums = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    gram = jacobian.gram(
        section.core.moments(sums, jacobian.metric), int((seen & told).sum()), int(seen.sum())
    )
    expected = jacobian_gram(section, f, transform, seen, told)[1:, 1:]
    assert relative_error(gram.matrix, expected) <= CLOSE


@pytest.mark.parametrize("kind", [{}, {"causal": False}, {"window": 90}, {"cap": 0.7}])
def test_heads_that_share_keys_are_heads_with_equal_keys(kind: dict[str, Any]) -> None:
    """Over several blocks of keys, the last of them short, in the levels that are chosen."""
    rotary = Rotary(tuple(1e4 ** (-i / 8) for i in range(8)))
    shape = AttentionShape(6, 18, rotary=rotary, key_heads=2, **kind)
    section = attention_section(shape)
    f = activations(section, 2, 300)
    q, k, v = shape.parts(section.read, 0)
    single = replace(
        section,
        read=torch.cat([part.flatten(0, 1) for part in (q, k, v)]),
        core=Attention(replace(shape, key_heads=None)),
    )
    metric = normal(108, 108) @ normal(108, 108).T
    shared, alone = (
        batch_moments(some.core, some.read_outs(f), slice(0, 300), metric) for some in (section, single)
    )
    repeats = torch.cat([part.flatten(0, 1) for part in shape.parts(torch.eye(sum(shape.sizes)).double(), 0)])
    assert relative_error(shared.gram, repeats.T @ alone.gram @ repeats) <= 1e-12
    assert relative_error(shared.local, alone.local @ repeats) <= 1e-12


def test_key_heads_must_divide_the_heads() -> None:
    with pytest.raises(ValueError, match=r"key_heads must divide .* 2 for 3 heads"):
        AttentionShape(3, 4, key_heads=2)


@pytest.mark.parametrize("length", [128, 384])
@pytest.mark.parametrize("highest", [0.0, 1e-4, 0.03, 0.3, 1.0])
@pytest.mark.parametrize(("dtype", "more", "error"), [(torch.float64, 25, 1e-12), (torch.float32, 17, 2e-7)])
def test_few_functions_span_a_band_of_frequencies(
    dtype: torch.dtype, more: int, error: float, highest: float, length: int
) -> None:
    functions = rotary_moments.band(length, highest, dtype)
    assert functions.shape[1] <= min(length, 2 * highest * length / math.pi + 2 * more)
    angle = torch.arange(length).double()[:, None] * 2 * highest * torch.linspace(0, 1, 101).double()
    for wave in (angle.cos(), angle.sin()):
        assert (functions @ (functions.T @ wave) - wave).abs().max() <= error


@pytest.mark.parametrize("levels", [2, 3, 4])
@pytest.mark.parametrize("kind", [{}, {"causal": False}, {"window": 60}, {"key_heads": 1}])
@pytest.mark.parametrize("pairs", [12, 10])
def test_slow_coordinates_by_few_functions_give_the_same_moments(
    pairs: int, kind: dict[str, Any], levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Key–key terms without a sum for every key, for full and partial rotary positions."""
    monkeypatch.setattr(rotary_moments, "KEYS_PER_BLOCK", 64)
    rotary = Rotary(tuple(0.5 * 300.0 ** (-i / pairs) for i in range(pairs)), 1.1)
    section = attention_section(AttentionShape(2, 24, rotary=rotary, **kind))
    f = activations(section, 2, 150)
    u, metric, at = f @ section.read.T, normal(48, 48) @ normal(48, 48).T, slice(0, 150)

    def gram(*bounds: Any) -> Tensor:
        monkeypatch.setattr(rotary_moments, "level_bounds", lambda *_: bounds)
        return batch_moments(section.core, u, at, metric).gram

    slow = rotary.frequencies[2:8:2][: levels - 1]
    every_key = gram(math.inf)
    assert relative_error(gram(math.inf, *slow), every_key) <= 1e-12
    assert relative_error(gram(rotary.frequencies[0], *slow), every_key) <= 1e-12


@pytest.mark.parametrize("pairs", [32, 20])
def test_levels_of_slow_coordinates_save_operations_and_float32_keeps_its_digits(
    pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotary = Rotary(tuple(1e5 ** (-i / pairs) for i in range(pairs)))
    section = attention_section(AttentionShape(2, 64, rotary=rotary, key_heads=1))
    f = activations(section, 1, 256)
    u, metric, at = f @ section.read.T, normal(128, 128) @ normal(128, 128).T, slice(0, 256)
    chosen, bounds = [], rotary_moments.level_bounds
    monkeypatch.setattr(
        rotary_moments, "level_bounds", lambda *key: chosen.append(bounds(*key)) or chosen[-1]
    )
    found = batch_moments(section.core, u.float(), at, metric.float()).gram
    wanted = batch_moments(section.core, u, at, metric).gram
    assert all(len(levels) >= 3 for levels in chosen)
    assert relative_error(found.double(), wanted) <= 3e-6


def test_levels_are_those_that_take_the_fewest_operations() -> None:
    angles = tuple(1e4 ** (-i / 6) for i in range(6))
    kind = angles, 64, 3, torch.float32
    found = rotary_moments.operations(*kind, rotary_moments.level_bounds(*kind))
    for chosen in range(2**6):
        bounds = tuple(angle for number, angle in enumerate(angles) if chosen >> number & 1)
        if len(bounds) >= rotary_moments.MAX_LEVELS:
            continue
        assert found <= rotary_moments.operations(*kind, (math.inf, *bounds)) + 1e-9
