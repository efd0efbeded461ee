"""Norms of every head's queries and keys: both sums and the edges against the general path, in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import activations, as_general, gram_error, normal
from interbasis.network.cores import HeadNorm
from interbasis.network.network import NodeLayer, Section
from interbasis.numerics.integration import rule
from reference import relative_error


def section(heads: int, width: int, epsilon: float, seed: int) -> Section:
    c = heads * width
    matrices = normal(5, 6, seed=seed), normal(c, 6, seed=seed + 1), normal(5, c, seed=seed + 2)
    return Section(NodeLayer("in", 6), NodeLayer("out", 5), *matrices, HeadNorm(width, epsilon))


@given(
    heads=st.integers(1, 3),
    width=st.integers(1, 4),
    epsilon=st.sampled_from([1e-6, 0.3, 1e3]),
    positions=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)
def test_closed_form_against_the_general_path(
    heads: int, width: int, epsilon: float, positions: int, seed: int
) -> None:
    made = section(heads, width, epsilon, seed)
    f = activations(made, 4, positions, seed=seed + 3)
    if width > 1 or epsilon > 1e-3:  # one coordinate over its own size: next to no slope
        assert gram_error(made, f) <= 1e-10
    u, at, general = made.read_outs(f), made.outputs(f), as_general(made).core
    for method in ("gradient", "quadrature", "trapezoid"):
        arguments = (u, f, made.read, at, rule(method, 3))
        found, wanted = made.core.attributions(*arguments), general.attributions(*arguments)
        assert (found - wanted).abs().max() <= 1e-10 * max(1.0, wanted.abs().max().item())


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 1e3, 1e9])
def test_exact_edges_add_up_and_are_the_integral(epsilon: float) -> None:
    made = section(2, 4, epsilon, 0)
    f = activations(made, 5, 3)
    u, at = made.read_outs(f), made.outputs(f)
    exact = made.core.attributions(u, f, made.read, at, rule("exact"))
    whole = made.core(u, at).flatten(0, 1)
    assert relative_error(exact.sum(-1).T, whole) <= 1e-10
    if epsilon >= 1:
        assert (
            relative_error(exact, made.core.attributions(u, f, made.read, at, rule("quadrature", 60))) <= 1e-9
        )


def test_zero_is_zero() -> None:
    core = HeadNorm(2, 1e-6)
    zero = torch.zeros(1, 1, 4, dtype=torch.float64)
    assert not core(zero, slice(0, 1)).any()
    found = core.attributions(zero, zero, torch.eye(4).double(), slice(0, 1), rule("exact"))
    assert found.isfinite().all()
