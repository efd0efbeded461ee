"""The difference of two sections against per-sample automatic differentiation of each, in float64."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases import ACTIVATIONS, activations, attention_section, batch_moments, normal
from interbasis.base.errors import InterbasisError
from interbasis.network.cores import (
    AttentionShape,
    Core,
    Elementwise,
    Gated,
    HeadNorm,
    Normalize,
    PassCore,
    Rotary,
    ScoreBias,
    Variance,
)
from interbasis.network.difference import difference
from interbasis.network.network import NodeLayer, Section
from interbasis.network.stencil import Stencil
from interbasis.network.stencil_section import StencilSection
from interbasis.network.window import PaddingMode, SlidingWindow
from reference import jacobians, relative_error

TOLERANCES = {1.0: 1e-10, 1e-2: 1e-10, 1e-4: 1e-10, 1e-6: 1e-6}
"""Largest error relative to the difference itself, by relative change of the weights."""
changes = pytest.mark.parametrize("change", TOLERANCES)


def changed(
    section: Section,
    change: float,
    parts: tuple[str, str, str] | list[Any] = ("skip", "read", "write"),
    seed: int = 50,
) -> Section:
    """The section with every weight changed by about so much of its size; the constant's row is left."""
    moved = {}
    for k, name in enumerate(parts):
        matrix = getattr(section, name)
        noise = normal(*matrix.shape, seed=seed + k)
        if name != "read" and section.target.constant:
            noise[0] = 0
        moved[name] = matrix * (1 + change * noise)
    return replace(section, **moved)


def mlp_section(core: Core, hidden: int, reads: int, last_only: bool = False) -> Section:
    d_in, d_out = 6, 5
    skip, write, read = normal(d_out, d_in), normal(d_out, hidden, seed=1), normal(reads, d_in, seed=2)
    return Section(NodeLayer("in", d_in), NodeLayer("out", d_out), skip, read, write, core, last_only)


def found(section: Section, f: Tensor, transform: Tensor) -> tuple[Tensor, Tensor]:
    """E[D Dᵀ] and E[Jᵀ W J], W = CᵀC, as the library computes them."""
    jacobian: Any = section.jacobian(transform)
    outputs, u = section(f), section.read_outs(f)
    metric = jacobian.metric
    if isinstance(section, StencilSection):
        sums = section.statistics(u.flatten(0, 1))
        gram = jacobian.gram_from_sums(sums, metric, outputs.shape[:2].numel(), f.shape[:2].numel())
    else:
        moments = batch_moments(section.core, u, section.outputs(f), metric)
        gram = jacobian.gram(moments, outputs.shape[:2].numel(), f.shape[:2].numel())
    rows = outputs.flatten(0, 1)
    return rows.T @ rows / len(rows), gram.matrix


def expected(first: Section, second: Section, f: Tensor, transform: Tensor) -> tuple[Tensor, Tensor]:
    """The same from values and full Jacobians of both sections."""
    rows = (first(f) - second(f)).flatten(0, 1)
    J = torch.einsum("ro,nsotj->nsrtj", transform, jacobians(first, f) - jacobians(second, f))
    J = J[..., first.source.first_coordinate :]
    return rows.T @ rows / len(rows), torch.einsum("nsrtj,nsrtk->jk", J, J) / f.shape[:2].numel()


def check(first: Section, second: Section, f: Tensor, tolerance: float) -> None:
    transform = normal(4, first.target.width, seed=77)
    results = found(difference(first, second), f, transform)
    for result, reference in zip(results, expected(first, second, f, transform), strict=True):
        assert reference.abs().max() > 0
        assert relative_error(result, reference) <= tolerance
    for result in found(difference(first, first), f, transform):
        assert not result.any()


@changes
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_mlps(name: str, change: float) -> None:
    section = mlp_section(Elementwise(ACTIVATIONS[name]), 9, 9)
    f = activations(section, 7, 3)
    check(section, changed(section, change), f, TOLERANCES[change])
    check(section, changed(section, change, ["read"]), f, TOLERANCES[change])
    check(section, changed(section, change, ["write"]), f, TOLERANCES[change])


@changes
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("activation", [nn.SiLU(), nn.GELU(), nn.ReLU(), nn.Sigmoid()])
def test_gated_mlps(activation: nn.Module, last_only: bool, change: float) -> None:
    section = mlp_section(Gated(activation), 5, 10, last_only)
    check(section, changed(section, change), activations(section, 6, 3), TOLERANCES[change])


@changes
def test_slopes_that_are_trained(change: float) -> None:
    first, second = nn.PReLU().double(), nn.PReLU().double()
    second.weight.data *= 1 + change
    section = mlp_section(Elementwise(first), 4, 4)
    other = replace(changed(section, change), core=Elementwise(second))
    check(section, other, activations(section, 6, 3), TOLERANCES[change])


KINDS = {
    "plain": AttentionShape(3, 2),
    "one head": AttentionShape(1, 3),
    "bidirectional": AttentionShape(2, 3, causal=False),
    "grouped": AttentionShape(4, 2, key_heads=2),
    "windowed": AttentionShape(2, 3, window=2),
    "capped": AttentionShape(2, 3, cap=0.7),
    "sinks and biases": AttentionShape(2, 3, sinks=(0.4, -0.2), bias=ScoreBias(slopes=(0.3, 0.1))),
    "rotary": AttentionShape(2, 4, rotary=Rotary((1.0, 0.3))),
    "partly rotary": AttentionShape(2, 5, rotary=Rotary((1.0, 0.3), stretch=1.2)),
    "rotary, grouped, windowed": AttentionShape(4, 2, window=3, rotary=Rotary((0.8,)), key_heads=2),
    "rotary, one group, capped": AttentionShape(3, 2, cap=2.0, rotary=Rotary((0.8,)), key_heads=1),
}


@changes
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_attention(kind: str, last_only: bool, change: float) -> None:
    section = attention_section(KINDS[kind], last_only)
    f = activations(section, 3, 5)
    check(section, changed(section, change), f, TOLERANCES[change])
    check(section, changed(section, change, ["read"]), f, TOLERANCES[change])


def test_attention_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from interbasis.network.cores.attention import difference as module
    from interbasis.network.cores.attention import rotary_moments

    monkeypatch.setattr(module, "MAX_BLOCK_ELEMENTS", 300)
    monkeypatch.setattr(module, "KEYS_PER_BLOCK", 4)
    monkeypatch.setattr(rotary_moments, "KEYS_PER_BLOCK", 4)
    for kind in ("plain", "rotary", "rotary, grouped, windowed"):
        section = attention_section(KINDS[kind])
        check(section, changed(section, 1e-2), activations(section, 5, 7), 1e-10)


@changes
def test_norms(change: float) -> None:
    """Norms have no weights of their own; the section that writes and carries differs."""
    nodes = NodeLayer("in", 6), NodeLayer("out", 5)
    reads = torch.eye(6, dtype=torch.float64)[1:]
    normalise = Section(*nodes, normal(5, 6), reads, normal(5, 4, seed=1), Normalize(1e-3))
    variance = Section(*nodes, normal(5, 6), reads, normal(5, 1, seed=1), Variance(5))
    f = activations(normalise, 7, 3)
    f[..., 1] = f[..., 1].abs()
    for section in (normalise, variance):
        check(section, changed(section, change, ["skip", "write"]), f, TOLERANCES[change])


@changes
@pytest.mark.parametrize("core", [HeadNorm(2, 1e-3), Normalize(1e-3)], ids=str)
def test_other_cores_by_automatic_differentiation(core: HeadNorm | Normalize, change: float) -> None:
    width = 4 if isinstance(core, HeadNorm) else 3
    section = mlp_section(core, width, 4)
    f = activations(section, 6, 3)
    if isinstance(core, Normalize):
        section = replace(section, read=section.read.abs())
        f = f.abs()
    check(section, changed(section, change), f, TOLERANCES[change])


@changes
@pytest.mark.parametrize("padding", ["zeros", "circular"])
def test_convolutions(padding: PaddingMode, change: float) -> None:
    window = SlidingWindow.from_arguments((3, 2), (2, 1), (1, 1), (1, 0), padding)
    stencil = Stencil.sliding((5, 4), window)
    source, target = NodeLayer("in", 4, grid=(5, 4)), NodeLayer("out", 5, grid=stencil.target)
    columns = 1 + stencil.taps * 4
    section = StencilSection(
        source, target, normal(5, columns), normal(6, columns, seed=1), normal(5, 6, seed=2),
        Elementwise(nn.GELU()), stencil=stencil,
    )  # fmt: skip
    f = activations(section, 3, 20)
    check(section, changed(section, change), f, TOLERANCES[change])


def test_different_cores_stand_side_by_side() -> None:
    gated, plain = mlp_section(Gated(nn.SiLU()), 5, 10), mlp_section(Elementwise(nn.ReLU()), 7, 7)
    f = activations(gated, 6, 3)
    transform = normal(4, 5, seed=77)
    for pair in ((gated, plain), (plain, gated)):
        for result, reference in zip(
            found(difference(*pair), f, transform), expected(*pair, f, transform), strict=True
        ):
            assert relative_error(result, reference) <= 1e-10


def test_refusals() -> None:
    section = mlp_section(Elementwise(nn.ReLU()), 9, 9)
    with pytest.raises(InterbasisError, match=r"with 6 coordinates, .* with 7"):
        difference(section, replace(section, source=NodeLayer("in", 7)))
    with pytest.raises(InterbasisError, match="different positions"):
        difference(section, replace(section, last_only=True))
    with pytest.raises(InterbasisError, match="cores of one kind"):
        difference(section, mlp_section(Variance(9), 1, 9))
    attention = attention_section(AttentionShape(2, 3))
    other = attention_section(AttentionShape(3, 2))
    with pytest.raises(InterbasisError, match="attention of one shape"):
        difference(attention, other)


def test_cores_are_of_the_kinds_that_passes_expect() -> None:
    attention = attention_section(AttentionShape(2, 3))
    assert isinstance(difference(attention, changed(attention, 1e-2)).core, PassCore)
