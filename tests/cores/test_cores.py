"""Every closed form against per-sample Jacobians and against the general path, in float64."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cases import ACTIVATIONS, activations, as_general, attention_section, normal
from interbasis.cores import Elementwise, Linear
from interbasis.integration import rule
from interbasis.jacobian import assemble
from interbasis.models.sequential import ELEMENTWISE
from interbasis.network import NodeLayer, Section
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


def moments_of(section: Section, f: torch.Tensor, transform: torch.Tensor, signs=None):
    u, outputs = f @ section.read.T, section.outputs(f)
    write = transform @ section.write
    metric = write.T @ write
    if section.core.has_statistics:
        return section.core.moments(section.core.statistics(u, outputs), metric)
    return section.core.batch_moments(u, outputs, metric, signs)


def gram_of(section: Section, f: torch.Tensor, transform: torch.Tensor, signs=None) -> torch.Tensor:
    moments = moments_of(section, f, transform, signs)
    outputs = f[:, section.outputs(f)].shape[:2].numel()
    gram = assemble(section, transform, transform @ section.write, moments, outputs, f.shape[0] * f.shape[1])
    return gram.X.T @ gram.K @ gram.X


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
def test_elementwise(name, widths, positions, last_only, seed):
    section = elementwise_section(ACTIVATIONS[name], widths, last_only, seed)
    check(section, activations(section, 5, positions, seed=seed + 3))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("last_only", [True, False])
@given(
    heads=st.integers(1, 4),
    head=st.integers(1, 4),
    positions=st.integers(1, 5),
    samples=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)
def test_attention(causal, last_only, heads, head, positions, samples, seed):
    section = attention_section(heads, head, causal, last_only, seed)
    check(section, activations(section, samples, positions, seed=seed + 3))


def test_attention_over_several_blocks_of_queries_and_samples(monkeypatch):
    from interbasis.cores import attention

    monkeypatch.setattr(attention, "BLOCK", 2)
    monkeypatch.setattr(attention, "BUDGET", 60)
    for causal in (True, False):
        section = attention_section(3, 3, causal, last_only=False)
        check(section, activations(section, 4, 5))


@given(
    widths=st.tuples(st.integers(2, 7), st.integers(1, 6)),
    positions=st.integers(1, 3),
    last_only=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_linear(widths, positions, last_only, seed):
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
def test_stochastic_sources_are_unbiased_and_exact_for_one_position(sources):
    """Averaged over all sign patterns of two output positions, the estimate is the exact sum."""
    section = as_general(attention_section(2, 2, True, False))
    f, transform = activations(section, 2, 2), normal(4, 5)
    exact = gram_of(section, f, transform)
    patterns = torch.tensor([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)]).double()
    estimates = [
        gram_of(section, f, transform, pattern.expand(2, 2)[..., None].repeat(1, 1, sources))
        for pattern in patterns
    ]
    assert relative_error(torch.stack(estimates).mean(0), exact) <= CLOSE
    assert max(relative_error(estimate, exact) for estimate in estimates) > 1e-3
    last = as_general(attention_section(2, 2, True, last_only=True))
    signs = -torch.ones(2, 1, sources, dtype=torch.float64)
    assert relative_error(gram_of(last, f, transform, signs), gram_of(last, f, transform)) <= CLOSE


KINKED_NEAR_ZERO = [nn.Hardtanh(-0.005, 0.005), nn.Softshrink(0.003)]


@pytest.mark.parametrize("activation", [*(kind() for kind in ELEMENTWISE), *KINKED_NEAR_ZERO], ids=str)
def test_the_secant_slope_is_the_integral(activation):
    core = Elementwise(activation)
    u = torch.cat(
        [normal(300) * 3, torch.tensor([0.0, 1e-12, -1e-7, 1e-5, -1e-4, 0.004, 15.0, -15.0]).double()]
    )
    exact = core.mean_slope(u, rule("exact"))
    # what integrated gradients promise: slope · u = act(u) − act(0), to the last digit, also near 0
    completed = exact * u
    assert (completed - core(u[None, :, None], slice(0, len(u)))[0, :, 0]).abs().max() <= 1e-14
    # and the integral itself: many panels, so that a kink spoils one of them only
    edges = torch.linspace(0, 1, 2001).double()
    panels = [core.slope((a + b) / 2 * u) * (b - a) for a, b in pairwise(edges)]
    assert relative_error(torch.stack(panels).sum(0), exact) <= 1e-3


@pytest.mark.parametrize("name", [name for name in sorted(ACTIVATIONS) if name not in ("relu", "leaky")])
def test_the_secant_slope_agrees_with_quadrature_to_all_digits(name):
    core = Elementwise(ACTIVATIONS[name])
    u = torch.cat([normal(300) * 3, torch.tensor([0.0, 1e-12, -1e-7, 1e-5, -2e-4, 15.0, -15.0]).double()])
    fine = core.mean_slope(u, rule("quadrature", 200))
    assert relative_error(core.mean_slope(u, rule("exact")), fine) <= 1e-11


def test_the_general_core_keeps_the_definition():
    """The general path itself against per-sample Jacobians, beyond what `check` compares."""
    section = as_general(attention_section(2, 3, True, False))
    f = activations(section, 3, 4)
    J = jacobians(lambda x: section.core(x @ section.read.T, slice(0, 4)), f)  # [n, S, c, T, d]
    expected = torch.einsum("nsctj,ntj->cnsj", J, f).flatten(1, 2)
    found = section.core.attributions(f @ section.read.T, f, section.read, slice(0, 4), rule())
    assert relative_error(found, expected) <= CLOSE
