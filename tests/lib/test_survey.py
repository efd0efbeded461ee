"""What every build reports about the largest direction of its layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import CASES, normal
from command_line import Cli
from interbasis import build, from_hf, open_run
from interbasis.graph.store import load
from interbasis.lib.survey import largest_share
from interbasis.network.network import Network
from reference import relative_error
from tiny_models import random_model, tokens


@pytest.fixture(scope="module")
def massive() -> tuple[Network, Tensor]:
    """A model that writes one coordinate of the first position a thousand times larger than all else."""
    pytest.importorskip("transformers")
    model = random_model("gpt2")
    with torch.no_grad():
        model.transformer.wpe.weight[0, 3] += 1000
    return from_hf(model), tokens(40, 8)


@pytest.mark.parametrize("shape", [(50, 7), (7, 50)])
def test_the_largest_share_is_that_of_the_first_singular_value(shape: tuple[int, int]) -> None:
    x = normal(*shape, seed=3) @ normal(shape[1], shape[1], seed=4)
    share, squares = largest_share(x)
    centred = x - x.mean(0)
    _, values, V = torch.linalg.svd(centred, full_matrices=False)
    assert abs(share - (values[0] ** 2 / values.square().sum()).item()) <= 1e-10
    assert relative_error(squares, (centred @ V[0]).square()) <= 1e-10


def test_the_first_position_carries_it(massive: tuple[Network, Tensor]) -> None:
    network, inputs = massive
    graph = build(network, inputs, edge_method=None).graph
    assert graph.config.norm_limit == 3
    for direction in list(graph.provenance.largest_directions.values())[:3]:
        assert direction.share > 0.99
        assert direction.share_counted < 0.9
        assert direction.left_out == pytest.approx(1 / 8)
        assert direction.largest_norm > 100 * direction.median_norm
        assert direction.positions[0].index == 0
        assert direction.positions[0].share > 0.8
        counted = torch.bincount(inputs[:, 0], minlength=23)
        assert counted[direction.tokens[0].index] == counted.max()


def test_effective_features_come_back(massive: tuple[Network, Tensor]) -> None:
    """What the massive token hides: with all tokens one feature stands for everything."""
    network, inputs = massive

    def effective(**settings: Any) -> float:
        ranked = build(network, inputs, edge_method=None, **settings).graph.layers[0].eigenvalues[1:]
        return (ranked.sum().square() / ranked.square().sum()).item()

    assert effective(norm_limit=0) < 1.1
    assert effective() > 1.5


def test_a_model_without_positions_reports_shares_alone() -> None:
    case = CASES["relu"]()
    for direction in build(case.network, case.inputs).graph.provenance.largest_directions.values():
        assert 0 < direction.share == direction.share_counted <= 1
        assert direction.left_out == 0
        assert direction.positions == direction.tokens == ()


def test_the_run_says_it(massive: tuple[Network, Tensor], tmp_path: Path, cli: Cli) -> None:
    network, inputs = massive
    graph = build(network, inputs, edge_method=None).graph
    graph.save(tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.provenance.largest_directions == graph.provenance.largest_directions
    shown = cli("show", str(tmp_path / "run")).out
    assert "Largest direction of every layer" in shown
    assert "exceeds 3 times" in " ".join(shown.split())


def test_labels_leave_out_what_the_basis_left_out(massive: tuple[Network, Tensor]) -> None:
    """The first position, which no feature was made for, is at the mean of every feature."""
    network, inputs = massive
    graph = build(network, inputs, edge_method=None).graph
    means = {}
    for limited in (graph, build(network, inputs, edge_method=None, norm_limit=0).graph):
        found = open_run(limited, network, inputs).features(top=4)
        first = [feature.positions.means[0] for feature in found.layers["ln1.0"].features]
        means[limited.config.norm_limit] = max(map(abs, first))
    assert means[3] <= 1e-6
    assert means[0] > 1


def test_a_factor_of_the_gram_knows_features_that_the_gram_does_not() -> None:
    """Numbers 1e4 apart, all tokens counted: a Λ of 1e-16 of the largest is a feature, and M the identity."""
    from reference import jacobian_gram

    model = random_model("gpt2")
    with torch.no_grad():
        model.transformer.wpe.weight[0, 3] += 1e4
    network, inputs = from_hf(model), tokens(40, 8)
    graph = build(network, inputs, edge_method=None, norm_limit=0, dtype="float64").graph
    layer, target = graph.layers[:2]
    ranked = layer.eigenvalues[1:]
    assert ranked.min() < 13 * 2.2e-16 * ranked.max()
    assert layer.features == 12  # the constant, and 12 coordinates less the one layer norms ignore
    f = network.double().activations(inputs)[0]
    M = jacobian_gram(network.double().sections[0], f, target.transform)
    M = layer.inverse[:, 1:].T @ M @ layer.inverse[:, 1:]
    assert (M.diagonal() - 1).abs().max() <= 1e-6
