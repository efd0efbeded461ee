"""Largest values, functions per feature, biases of scores, sums of squares: each against its definition."""

import pytest
import torch
from torch import nn

from cases import normal
from interbasis.network.cores import Linear
from interbasis.network.cores.attention.bias import ScoreBias
from interbasis.network.cores.largest import Largest
from interbasis.network.cores.per_feature import PerFeatureNorm, PerFeaturePReLU
from interbasis.network.cores.squares import LinearSquares, VarianceSquares
from interbasis.network.network import NodeLayer, Section
from interbasis.numerics.integration import rule
from reference import relative_error


def test_the_largest_of_several_taps() -> None:
    """Outputs, ΣN and Σ NᵀQN by autograd, blocks of different taps left out, and attributions N A f."""
    core, u = Largest(3), normal(4, 2, 6)
    outputs = slice(0, 2)
    assert torch.equal(core(u, outputs), u.unflatten(-1, (3, 2)).amax(-2))
    tokens = u.flatten(0, 1)
    N = torch.stack([torch.func.jacrev(lambda x: core(x[None, None], slice(0, 1))[0, 0])(x) for x in tokens])
    metric = normal(2, 2, seed=1)
    metric = metric @ metric.T
    moments = core.moments(core.statistics(u, outputs), metric)
    assert relative_error(moments.local, N.sum(0)) <= 1e-14
    gram = torch.einsum("tci,cd,tdj->ij", N, metric, N) * torch.block_diag(*[torch.ones(2, 2)] * 3)
    assert relative_error(moments.gram, gram) <= 1e-14
    f, read = normal(4, 2, 5, seed=2), normal(6, 5, seed=3)
    found = core.attributions(u, f, read, outputs, rule())  # [c, tokens, r]
    assert relative_error(found, torch.einsum("tci,ij,tj->ctj", N, read, f.flatten(0, 1))) <= 1e-14


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norms_and_slopes_in_the_last_dimension(affine: bool) -> None:
    norm, slopes, x = nn.BatchNorm1d(3, affine=affine).double(), nn.PReLU(3).double(), normal(50, 3)
    norm(3 * x + 1)
    norm.eval()
    slopes.weight.data = normal(3, seed=1)
    if affine:
        norm.weight.data, norm.bias.data = normal(3, seed=2), normal(3, seed=3)
    rows = x.view(10, 5, 3)
    assert relative_error(PerFeatureNorm(norm)(rows), norm(rows.mT).mT) <= 1e-14
    assert torch.equal(PerFeaturePReLU(slopes)(rows), slopes(rows.mT).mT)


def test_biases_of_scores_by_distance() -> None:
    """slope · (t − s) + the table's entry, that of the nearest distance beyond its reach."""
    bias = ScoreBias(slopes=(1.0, -0.5), tables=((1.0, 2.0, 4.0), (10.0, 20.0, 40.0)))
    distances, like = torch.tensor([-3, -1, 0, 2]), torch.zeros(0).double()
    assert bias(slice(0, 2), distances, like).tolist() == [[-2.0, 0.0, 2.0, 6.0], [11.5, 10.5, 20.0, 39.0]]
    assert bias(slice(1, 2), distances, like).tolist() == [[11.5, 10.5, 20.0, 39.0]]


@pytest.mark.parametrize("kind", ["linear", "variance"])
def test_sums_of_squares_are_those_of_single_tokens(kind: str) -> None:
    """A_ij = P_ij f_j, or f_j (P_ij + B_i g_j) with g = slope · uᵀA, squared and summed over tokens."""
    nodes = NodeLayer("a", 5), NodeLayer("b", 6)
    section = Section(*nodes, normal(6, 5), normal(4, 5, seed=1), normal(6, 1, seed=2), Linear())
    f, slope = normal(7, 5, seed=3), 0.3
    squares = LinearSquares(section) if kind == "linear" else VarianceSquares(section, slope)
    g = 0 * f if kind == "linear" else slope * f @ section.read.T @ section.read
    A = f[:, None] * (section.skip + section.write * g[:, None])  # [tokens, 6, 5]
    assert relative_error(squares.square(squares.token_sums(f)), A.square().sum(0)) <= 1e-12
    weights = normal(1, 7, seed=4).abs()
    (sums,) = squares.sampled_sums(f[None], weights)
    weighted = weights[0, :, None, None] * A.square()
    assert relative_error(squares.square(sums), weighted.sum(0)) <= 1e-12
    difference = weighted[::2].sum(0) - weighted[1::2].sum(0)
    assert relative_error(squares.variance(sums), difference.square()) <= 1e-11
