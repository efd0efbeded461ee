"""Grams of Jacobians over other data, with stochastic sources, on the small side."""

import pytest
import torch
from torch import nn

import interbasis
from cases import CASES, as_general, mlp, modular_addition, normal
from interbasis import build
from interbasis.base.records import Basis
from reference import jacobian_gram, relative_error


@pytest.mark.parametrize("kind", ["lib", "gib"])
def test_wide_layers_are_decomposed_on_the_small_side(kind: Basis) -> None:
    """M has rank ≤ the width that is read; at full width, noise above an absolute cut would add features."""
    case = mlp(nn.ReLU(), widths=(80, 6, 5, 3), samples=300)
    layers = build(
        case.network, 1e4 * case.inputs, basis=kind, relative_threshold=0, edge_method=None
    ).graph.layers
    assert layers[0].features == 7
    assert layers[0].jacobian_cut.kept == 6
    assert layers[0].jacobian_cut.dropped == 74  # the rest of the 80 directions with variance


def test_jacobians_may_be_averaged_over_other_data() -> None:
    case = mlp(nn.GELU())
    other = normal(25, 6, seed=11)
    layers = build(case.network, case.inputs, jacobian_data=other, edge_method=None).graph.layers
    f = case.network.activations(other)
    M = jacobian_gram(case.network.sections[1], f[1], layers[2].transform)
    M = layers[1].inverse[:, 1:].T @ M @ layers[1].inverse[:, 1:]
    assert (M - torch.eye(len(M))).abs().max() <= 1e-8


def test_stochastic_sources_for_jacobians_are_exact_for_one_position_and_converge_otherwise() -> None:
    one = CASES["general"]()
    exact = build(one.network, one.inputs, edge_method=None).graph.layers
    with_sources = build(one.network, one.inputs, edge_method=None, jacobian_sources=1).graph.layers
    assert relative_error(with_sources[0].eigenvalues, exact[0].eigenvalues) <= 1e-12
    many = modular_addition(blocks=2)
    network = many.network.between(["attn_in.0", "mlp_in.0", "attn_in.1"])
    exact = build(network, many.inputs, basis="gib", edge_method=None).graph.layers[0].eigenvalues

    def error(sources: int) -> float:
        found = [
            build(network, many.inputs, basis="gib", edge_method=None, jacobian_sources=sources, seed=s).graph
            for s in range(4)
        ]
        return sum(relative_error(g.layers[0].eigenvalues[1:4], exact[1:4]) for g in found) / 4

    assert 1e-6 < error(64) < error(1) < 0.5


def test_one_source_is_exact_where_positions_do_not_mix() -> None:
    case = CASES["positionwise"]()
    first, last = case.network.sections  # the last is linear
    sections = (as_general(first), last)
    general = interbasis.Network(case.network.prefix, sections)
    exact = build(case.network, case.inputs, edge_method=None).graph.layers
    for sources in (1, 3):
        found = build(general, case.inputs, edge_method=None, jacobian_sources=sources).graph.layers
        for mine, theirs in zip(found, exact, strict=True):
            assert relative_error(mine.transform, theirs.transform) <= 1e-9
