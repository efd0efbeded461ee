"""Every closed form against per-sample Jacobians and against the general path, in float64."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cases import (
    ACTIVATIONS,
    HEADS_AND_KEY_HEADS,
    activations,
    as_general,
    attention_section,
    batch_moments,
    normal,
)
from interbasis.base.errors import InterbasisError
from interbasis.compute.executor import add_sums
from interbasis.models.sequential import ELEMENTWISE
from interbasis.network.attributions import token_attributions
from interbasis.network.cores import (
    AttentionShape,
    Elementwise,
    Gated,
    Linear,
    Normalize,
    Rotary,
    ScoreBias,
    Variance,
)
from interbasis.network.cores.core import Moments, into_groups
from interbasis.network.network import NodeLayer, Section
from interbasis.network.section_jacobian import DenseJacobian
from interbasis.numerics.integration import rule
from reference import jacobian_gram, jacobians, relative_error

CLOSE = 1e-10


def elementwise_section(
    activation: nn.Module, widths: tuple[int, int, int], last_only: bool, seed: int
) -> Section:
    d_in, hidden, d_out = widths
    skip, write = normal(d_out, d_in, seed=seed), normal(d_out, hidden, seed=seed + 1)
    read = normal(hidden, d_in, seed=seed + 2)
    nodes = NodeLayer("in", d_in), NodeLayer("out", d_out)
    return Section(*nodes, skip, read, write, Elementwise(activation), last_only)


def moments_of(
    section: Section, f: torch.Tensor, transform: torch.Tensor, signs: Tensor | None = None
) -> Moments:
    u, outputs = f @ section.read.T, section.outputs(f)
    write = transform @ section.write
    metric = write.T @ write
    return batch_moments(section.core, u, outputs, metric, signs)


def gram_of(
    section: Section, f: torch.Tensor, transform: torch.Tensor, signs: Tensor | None = None
) -> torch.Tensor:
    moments = moments_of(section, f, transform, signs)
    outputs = f[:, section.outputs(f)].shape[:2].numel()
    gram = DenseJacobian.from_section(section, transform).gram(moments, outputs, f.shape[0] * f.shape[1])
    return gram.matrix


def check(section: Section, f: torch.Tensor) -> None:
    """Local sum, Jacobian Gram and attributions: closed form = general path = definition."""
    transform = normal(4, section.target.width, seed=77)
    expected = jacobian_gram(section, f, transform)[1:, 1:]
    general = as_general(section)
    assert relative_error(gram_of(section, f, transform), expected) <= CLOSE
    assert relative_error(gram_of(general, f, transform), expected) <= CLOSE
    closed, reference = moments_of(section, f, transform), moments_of(general, f, transform)
    assert relative_error(closed.local, reference.local) <= CLOSE
    assert relative_error(closed.gram, reference.gram) <= CLOSE
    u, at = f @ section.read.T, section.outputs(f)
    for method in ("gradient", "quadrature", "trapezoid"):
        arguments = (u, f, section.read, at, rule(method, 3))
        found, wanted = section.core.attributions(*arguments), general.core.attributions(*arguments)
        assert found.shape == (section.write.shape[1], f[:, at].shape[:2].numel(), f.shape[2])
        assert relative_error(found, wanted) <= CLOSE


@given(
    name=st.sampled_from(sorted(ACTIVATIONS)),
    widths=st.tuples(st.integers(2, 7), st.integers(1, 9), st.integers(1, 6)),
    positions=st.integers(1, 3),
    last_only=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_elementwise(
    name: str, widths: tuple[int, int, int], positions: int, last_only: bool, seed: int
) -> None:
    section = elementwise_section(ACTIVATIONS[name], widths, last_only, seed)
    check(section, activations(section, 5, positions, seed=seed + 3))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("last_only", [True, False])
@settings(max_examples=8)
@given(
    heads=st.integers(1, 4),
    head=st.integers(1, 4),
    positions=st.integers(1, 5),
    samples=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)
def test_attention(
    causal: bool, last_only: bool, heads: int, head: int, positions: int, samples: int, seed: int
) -> None:
    section = attention_section(AttentionShape(heads, head, causal), last_only, seed)
    check(section, activations(section, samples, positions, seed=seed + 3))


def test_attention_over_several_blocks_of_queries_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    from interbasis.network.cores.attention import core, moments

    monkeypatch.setattr(core, "MAX_QUERIES_PER_BLOCK", 3)
    monkeypatch.setattr(core, "MAX_BLOCK_ELEMENTS", 60)
    monkeypatch.setattr(core, "MAX_PATTERN_ELEMENTS", 100)
    monkeypatch.setattr(moments, "MAX_COVARIANCE_ELEMENTS", 2)
    for causal in (True, False):
        for kind in ({}, {"rotary": Rotary((1.0,))}, {"cap": 2.0}, {"window": 2} if causal else {}):
            section = attention_section(AttentionShape(3, 3, causal, **kind))
            check(section, activations(section, 4, 5))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("last_only", [True, False])
@settings(max_examples=14)
@given(
    heads=st.sampled_from(HEADS_AND_KEY_HEADS),
    head=st.integers(2, 5),
    positions=st.integers(1, 5),
    turned=st.integers(0, 2),
    stretch=st.sampled_from([1.0, 1.3]),
    scale=st.sampled_from([None, 1.0]),
    cap=st.sampled_from([None, 0.7, 5.0]),
    window=st.sampled_from([None, 1, 2, 4]),
    constants=st.sampled_from(["", "sinks", "slopes", "tables", "sinks slopes tables"]),
    seed=st.integers(0, 10_000),
)
def test_attention_of_every_kind(
    causal: bool,
    last_only: bool,
    heads: tuple[int, int | None],
    head: int,
    positions: int,
    turned: int,
    stretch: float,
    scale: float | None,
    cap: float | None,
    window: int | None,
    constants: str,
    seed: int,
) -> None:
    """Rotary (none, partial, full), grouped keys, own scale, soft-capped scores, local windows, sinks,
    biases of scores; all mixed.
    """
    pairs = min(turned, head // 2)
    rotary = Rotary(tuple(0.9**i for i in range(pairs)), stretch) if pairs else None
    count, key_heads = heads
    kind: dict[str, Any] = {
        "scale": scale,
        "cap": cap,
        "rotary": rotary,
        "window": window if causal else None,
    }
    kind |= score_constants(constants, count)
    shape = AttentionShape(count, head, causal, **kind, key_heads=key_heads)
    section = attention_section(shape, last_only, seed)
    f = activations(section, 2, positions, seed=seed + 3)
    check(section, f)
    check_signed(section, f)
    check_without_gradients(section, f)


def score_constants(names: str, heads: int) -> dict[str, Any]:
    """Sinks and biases of an attention's shape, of those kinds that are named."""
    slopes = tuple(0.7 / (1 + h) for h in range(heads)) if "slopes" in names else ()
    table = tuple(map(tuple, normal(heads, 5, seed=8).tolist())) if "tables" in names else ()  # reaches 2
    bias = ScoreBias(slopes, table) if slopes or table else None
    return {"bias": bias, "sinks": tuple(normal(heads, seed=9).tolist()) if "sinks" in names else None}


def test_scores_with_sinks_and_biases_are_what_their_definitions_say() -> None:
    """Against the softmax written out for one query and key after the other."""
    shape = AttentionShape(2, 3, **score_constants("sinks slopes tables", 2))
    section = attention_section(shape)
    u = section.read_outs(activations(section, 1, 6))
    q, k, v = (part[0] for part in shape.parts(u, 2))  # [T, heads, h]
    expected = torch.zeros(6, 2, 3).double()
    for s in range(6):
        for h in range(2):
            table = shape.bias.tables[h]
            scores = [
                q[s, h] @ k[t, h] / 3**0.5 + shape.bias.slopes[h] * (t - s) + table[2 + max(-2, t - s)]
                for t in range(s + 1)
            ]
            weights = torch.stack([*scores, torch.tensor(shape.sinks[h], dtype=torch.float64)]).exp()
            expected[s, h] = (weights[:-1, None] * v[: s + 1, h]).sum(0) / weights.sum()
    assert relative_error(section.core(u, slice(0, 6))[0], expected.flatten(1)) <= 1e-12


def test_sinks_and_biases_are_for_all_heads() -> None:
    with pytest.raises(InterbasisError, match=r"each of the 3 heads, received \[2\]"):
        AttentionShape(3, 4, sinks=(0.1, 0.2))


def check_without_gradients(section: Section, f: torch.Tensor) -> None:
    """Where no gradient is wanted the pattern is not made, and the output is the same."""
    with torch.no_grad():
        found = section(f)
    assert relative_error(found, section(f)) <= CLOSE


@pytest.mark.parametrize("window", [None, 1, 3, 9])
@pytest.mark.parametrize("last_only", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_queries_are_mixed_block_by_block(
    window: int | None, last_only: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interbasis.network.cores.attention import mixing

    monkeypatch.setattr(mixing, "QUERIES_PER_BLOCK", 3)
    for causal in (True, False) if window is None else (True,):
        for rotary in (None, Rotary((1.0,))):
            shape = AttentionShape(4, 3, causal, window=window, rotary=rotary, key_heads=2)
            section = attention_section(shape, last_only).to(dtype)
            f = activations(section, 2, 8).to(dtype)
            with torch.no_grad():
                found = section(f)
            assert relative_error(found, section(f)) <= (CLOSE if dtype == torch.float64 else 1e-5)


def check_signed(section: Section, f: torch.Tensor) -> None:
    """Sums with signs over groups, within samples and across them, are sums of the attributions."""
    u, at = f @ section.read.T, section.outputs(f)
    tokens = f[:, at].shape[:2].numel()
    for size in (1, 2, at.stop - at.start, tokens):
        for method in ("gradient", "quadrature"):
            integral = rule(method, 2)
            signs = into_groups(normal(tokens, 2, seed=5).sign(), size)  # [groups, g, R]
            found = section.core.signed_attributions(u, f, section.read, at, integral, signs)
            each = section.core.attributions(u, f, section.read, at, integral).movedim(1, 0)
            wanted = torch.einsum("gtcj,gtr->cgrj", into_groups(each, size), signs).flatten(1, 2)
            assert relative_error(found, wanted) <= CLOSE


@pytest.mark.parametrize("constants", ["", "sinks tables"])
@pytest.mark.parametrize("rotary", [None, Rotary((1.0,), 1.2)])
def test_moments_at_some_queries_add_up_to_those_at_all(rotary: Rotary | None, constants: str) -> None:
    constants = score_constants(constants, 2)
    section: Any = attention_section(AttentionShape(2, 3, window=3, rotary=rotary, **constants))
    f = activations(section, 3, 6)
    u, metric = f @ section.read.T, normal(6, 6) @ normal(6, 6).T
    order = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(k)) for k in range(3)])
    whole = batch_moments(section.core, u, slice(0, 6), metric)
    first, second = (
        section.core.moments(section.core.sums_at(u, queries, metric), metric)
        for queries in (order[:, :2], order[:, 2:])
    )
    assert relative_error(first.local + second.local, whole.local) <= CLOSE
    assert relative_error(first.gram + second.gram, whole.gram) <= CLOSE


def norm_section(
    core: Variance | Normalize | Gated, inputs: int, outputs: int, last_only: bool, seed: int
) -> Section:
    """A section of random matrices around a core; the first read-out is positive, as a variance is."""
    d_in, d_out = 5, 6
    read = normal(inputs, d_in, seed=seed)
    read[0] = 0
    read[0, 0] = 1.3
    matrices = normal(d_out, d_in, seed=seed + 1), read, normal(d_out, outputs, seed=seed + 2)
    return Section(NodeLayer("in", d_in), NodeLayer("out", d_out), *matrices, core, last_only)


def check_squares(section: Any, f: torch.Tensor) -> None:
    """Σ A² in closed form is the sum over the tokens' attributions."""
    for method in ("gradient", "exact", "trapezoid"):
        squares = section.core.squares(section, rule(method, 3))
        sums: dict[str, Tensor] = {}
        for some in f[:, section.outputs(f)].flatten(0, 1).split(2):
            add_sums(sums, squares.token_sums(some))
        found = squares.square(sums)
        blocks = [block for _, _, block in token_attributions(section, f, rule(method, 3))]
        assert relative_error(found, torch.cat(blocks, dim=1).square().sum(1)) <= CLOSE


def check_exact(section: Section, f: torch.Tensor) -> None:
    """The closed form of the integral: a fine quadrature, and Σ_j A_ij = F_i."""
    u, at = f @ section.read.T, section.outputs(f)
    exact = section.core.attributions(u, f, section.read, at, rule("exact"))
    fine = section.core.attributions(u, f, section.read, at, rule("quadrature", 400))
    assert relative_error(exact, fine) <= CLOSE
    assert relative_error(exact.sum(2), section.core(u, at).flatten(0, 1).T) <= 1e-12


@given(
    width=st.integers(1, 6), positions=st.integers(1, 3), last_only=st.booleans(), seed=st.integers(0, 999)
)
def test_variance(width: int, positions: int, last_only: bool, seed: int) -> None:
    section = norm_section(Variance(width), width, 1, last_only, seed)
    f = activations(section, 5, positions, seed=seed + 3)
    check(section, f)
    check_exact(section, f)
    check_squares(section, f)


@given(
    width=st.integers(1, 6),
    epsilon=st.sampled_from([1e-5, 0.1, 3.0]),
    positions=st.integers(1, 3),
    last_only=st.booleans(),
    mixed=st.booleans(),
    seed=st.integers(0, 999),
)
def test_normalize(
    width: int, epsilon: float, positions: int, last_only: bool, mixed: bool, seed: int
) -> None:
    section = norm_section(Normalize(epsilon), 1 + width, width, last_only, seed)
    if mixed:  # the variance in other features than one, as without isolation
        section.read[0] += 0.05 * normal(5, seed=seed)
    f = activations(section, 5, positions, seed=seed + 3)
    check(section, f)
    check_squares(section, f)
    if epsilon > 0.01:  # else quadrature converges too slowly to judge
        check_exact(section, f)


def test_a_negative_variance_counts_as_zero() -> None:
    core = Normalize(0.25)
    u = torch.tensor([[[-3.0, 1.0, 2.0], [0.0, 1.0, 2.0]]]).double()
    assert torch.equal(core(u, slice(0, 2)), torch.tensor([[[2.0, 4.0], [2.0, 4.0]]]).double())
    section = norm_section(core, 3, 2, False, 1)
    f = activations(section, 4, 2)
    section.read[0] *= -1
    check(section, f)
    check_squares(section, f)
    check_exact(section, f)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu-tanh", "relu", "sigmoid"])
@settings(max_examples=8)
@given(
    width=st.integers(1, 5), positions=st.integers(1, 3), last_only=st.booleans(), seed=st.integers(0, 999)
)
def test_gated(name: str, width: int, positions: int, last_only: bool, seed: int) -> None:
    section = norm_section(Gated(ACTIVATIONS[name]), 2 * width, width, last_only, seed)
    f = activations(section, 5, positions, seed=seed + 3)
    check(section, f)
    check_signed(section, f)
    if name != "relu":
        check_exact(section, f)


def test_gates_near_zero_and_far_from_it() -> None:
    core = Gated(nn.SiLU())
    gates = torch.tensor([0.0, 1e-12, -1e-7, 1e-5, 9e-5, 2e-4, -25.0, 25.0]).double()
    u = torch.stack([gates, torch.full_like(gates, 1.7)], dim=-1)  # m = 1
    fine = core.mean_slopes(u, rule("quadrature", 300))
    assert relative_error(core.mean_slopes(u, rule("exact")), fine) <= 1e-11


@given(
    widths=st.tuples(st.integers(2, 7), st.integers(1, 6)),
    positions=st.integers(1, 3),
    last_only=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_linear(widths: tuple[int, int], positions: int, last_only: bool, seed: int) -> None:
    d_in, d_out = widths
    nothing = torch.zeros(0, d_in).double(), torch.zeros(d_out, 0).double()
    nodes = NodeLayer("in", d_in), NodeLayer("out", d_out)
    section = Section(*nodes, normal(d_out, d_in, seed=seed), *nothing, Linear(), last_only)
    f, transform = activations(section, 3, positions, seed=seed + 1), normal(4, d_out, seed=77)
    expected = jacobian_gram(section, f, transform)[1:, 1:]
    assert relative_error(gram_of(section, f, transform), expected) <= CLOSE
    at = section.outputs(f)
    found = section.core.attributions(f @ section.read.T, f, section.read, at, rule())
    assert found.shape == (0, f[:, at].shape[:2].numel(), d_in)


@pytest.mark.parametrize("sources", [1, 3])
def test_stochastic_sources_are_unbiased_and_exact_for_one_position(sources: int) -> None:
    """Averaged over all sign patterns of two output positions, the estimate is the exact sum."""
    section = as_general(attention_section(AttentionShape(2, 2)))
    f, transform = activations(section, 2, 2), normal(4, 5)
    exact = gram_of(section, f, transform)
    patterns = torch.tensor([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)]).double()
    estimates = [
        gram_of(section, f, transform, pattern.expand(2, 2)[..., None].repeat(1, 1, sources))
        for pattern in patterns
    ]
    assert relative_error(torch.stack(estimates).mean(0), exact) <= CLOSE
    assert max(relative_error(estimate, exact) for estimate in estimates) > 1e-3
    last = as_general(attention_section(AttentionShape(2, 2), last_only=True))
    signs = -torch.ones(2, 1, sources, dtype=torch.float64)
    assert relative_error(gram_of(last, f, transform, signs), gram_of(last, f, transform)) <= CLOSE


KINKED_NEAR_ZERO = [nn.Hardtanh(-0.005, 0.005), nn.Softshrink(0.003)]


@pytest.mark.parametrize("activation", [*(kind() for kind in ELEMENTWISE), *KINKED_NEAR_ZERO], ids=str)
def test_the_secant_slope_is_the_integral(activation: nn.Module) -> None:
    core = Elementwise(activation)
    u = torch.cat(
        [normal(300) * 3, torch.tensor([0.0, 1e-12, -1e-7, 1e-5, -1e-4, 0.004, 15.0, -15.0]).double()]
    )
    exact = core.mean_slopes(u, rule("exact"))
    # what integrated gradients promise: slope · u = act(u) − act(0), to the last digit, also near 0
    completed = exact * u
    assert (completed - core(u[None, :, None], slice(0, len(u)))[0, :, 0]).abs().max() <= 1e-14
    # and the integral itself: many panels, so that a kink spoils one of them only
    edges = torch.linspace(0, 1, 2001).double()
    panels = [core.slopes((a + b) / 2 * u) * (b - a) for a, b in pairwise(edges)]
    assert relative_error(torch.stack(panels).sum(0), exact) <= 1e-3


@pytest.mark.parametrize("name", [name for name in sorted(ACTIVATIONS) if name not in ("relu", "leaky")])
def test_the_secant_slope_agrees_with_quadrature_to_all_digits(name: str) -> None:
    core = Elementwise(ACTIVATIONS[name])
    u = torch.cat([normal(300) * 3, torch.tensor([0.0, 1e-12, -1e-7, 1e-5, -2e-4, 15.0, -15.0]).double()])
    fine = core.mean_slopes(u, rule("quadrature", 200))
    assert relative_error(core.mean_slopes(u, rule("exact")), fine) <= 1e-11


def test_a_gelu_in_many_steps_is_done_in_one_and_keeps_its_name() -> None:
    activations = pytest.importorskip("transformers.activations", reason="transformers is not installed")
    theirs = activations.NewGELUActivation()
    u = torch.cat([normal(300) * 4, torch.tensor([0.0, 1e-9, -1e-9, 30.0, -30.0]).double()]).requires_grad_()
    for kind in (Elementwise, Gated):
        ours = kind(theirs)
        assert ours.activation is not theirs
        assert repr(ours) == f"{kind.__name__}({theirs})"  # runs of older versions know the model by it
    assert relative_error(ours.activation(u), theirs(u)) <= 1e-15
    slopes = [torch.autograd.grad(act(u).sum(), u)[0] for act in (ours.activation, theirs)]
    assert relative_error(*slopes) <= 1e-15
    other = nn.GELU()
    assert Elementwise(other).activation is other


def test_the_general_core_keeps_the_definition() -> None:
    """The general path itself against per-sample Jacobians, beyond what `check` compares."""
    section = as_general(attention_section(AttentionShape(2, 3)))
    f = activations(section, 3, 4)
    J = jacobians(lambda x: section.core(x @ section.read.T, slice(0, 4)), f)  # [n, S, c, T, d]
    expected = torch.einsum("nsctj,ntj->cnsj", J, f).flatten(1, 2)
    found = section.core.attributions(f @ section.read.T, f, section.read, slice(0, 4), rule())
    assert relative_error(found, expected) <= CLOSE
