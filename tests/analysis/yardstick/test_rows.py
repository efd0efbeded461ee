"""Rows of the yardstick: losses, divergences, areas, ranks, single directions, mean Jacobians."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import interbasis
from cases import mlp, normal
from interbasis.analysis.yardstick.codes import CodedPlace, LinearCode
from interbasis.analysis.yardstick.directions import spearman
from interbasis.analysis.yardstick.mean_jacobian import mean_jacobians
from interbasis.analysis.yardstick.measure import Measurement, Meter, PointSeries
from interbasis.analysis.yardstick.rank import RankPlan, area, leading, rank_within
from interbasis.analysis.yardstick.records import YardstickRequest
from interbasis.compute.checkpoints import Checkpoint
from interbasis.data.batches import Batches
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from reference import jacobians, relative_error

EXACT = 1e-10


def plan(*kept: int) -> RankPlan:
    return RankPlan((CodedPlace("x", 0, slice(1, 9)),), kept, ())


def test_default_ranks_are_the_first_few_and_eighths() -> None:
    place = CodedPlace("x", 0, slice(1, 65))
    default = RankPlan.from_request([place], YardstickRequest())
    assert default.kept == (0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    asked = RankPlan.from_request([place], YardstickRequest(ranks="16,100", removed="3"))
    assert (asked.kept, asked.removed) == ((0, 16, 64), (3,))


def test_areas_are_those_of_a_picture() -> None:
    rises = torch.tensor([[4.0, 0.0, 0.0], [4.0, 2.0, 0.0], [4.0, 4.0, 0.0]], dtype=torch.float64)
    assert area(plan(0, 4, 8), rises).tolist() == [0.75, 0.5, 0.25]
    worse = rises.clone()
    worse[:, 0] = 100  # puts dropped directions at a bad place: no gain
    assert (area(plan(0, 4, 8), worse, rises) < area(plan(0, 4, 8), rises)).all()


def test_ranks_lie_where_the_rise_crosses_the_tolerance() -> None:
    rises = torch.tensor(
        [[4.0, 0.3, 0.1, 0.0], [0.05] * 4, [4.0, 3.0, 2.0, 1.0], [4.0, 0.0, 0.3, 0.0]], dtype=torch.float64
    )
    ranks = rank_within(plan(0, 2, 4, 8), rises, 0.2).tolist()
    assert ranks[:2] == pytest.approx([3.0, 0.0])
    assert torch.tensor(ranks[2]).isnan()
    assert ranks[3] == pytest.approx(4 + 4 / 3)  # not at 2, since it rises again


def test_rank_correlation_is_spearman_s() -> None:
    rows, other = normal(3, 40, seed=1).round(decimals=1), normal(40, seed=2).round(decimals=1)
    expected = [spearmanr(row, other).statistic for row in rows]
    assert spearman(rows, other).tolist() == pytest.approx(expected, rel=1e-12)


def test_losses_and_divergences_are_those_of_torch() -> None:
    case = mlp(nn.GELU())
    network, x = case.network, case.inputs
    labels = torch.arange(len(x)) % 4
    code = LinearCode(slice(1, 7), torch.eye(6).double(), torch.eye(6).double(), x.mean(0))
    keep = torch.tensor([True, True, False, False, True, False])
    meter = Meter(network, Batches((x, labels)), ALL_TOKENS)
    gram = normal(6, 6, seed=3)
    metric = gram.T @ gram
    series = PointSeries({0: code}, [{0: keep}], slice(1, 7), metric)
    measured = Measurement.from_tensors([meter.measure([series], Checkpoint())])
    changed = torch.where(keep, x, x.mean(0))
    before, after = case.original(x).log_softmax(-1), case.original(changed).log_softmax(-1)
    loss = nn.functional.nll_loss(after, labels, reduction="none")
    divergence = nn.functional.kl_div(after, before, reduction="none", log_target=True).sum(-1)
    assert relative_error(measured.losses[1], loss) < EXACT
    assert (
        relative_error(measured.losses[0], nn.functional.nll_loss(before, labels, reduction="none")) < EXACT
    )
    assert relative_error(measured.divergences[0], divergence) < EXACT
    error = x - changed
    assert relative_error(measured.errors[0], error.square().sum(1).mean()) < EXACT
    assert relative_error(measured.metric_errors[0], ((error @ metric) * error).sum(1).mean()) < EXACT


def test_points_that_need_no_pass_are_what_a_pass_gives() -> None:
    """All directions kept change nothing; with none kept, all samples are one."""
    pytest.importorskip("transformers")
    from tiny_models import random_model, tokens

    network, inputs = interbasis.from_hf(random_model("gpt2")).double(), tokens(6, 10)
    layers = [network.layers.index(name) for name in ("ln1.0", "ln1.1")]
    codes = {}
    for layer in layers:
        width = network.nodes[layer].width - 1
        rotation = torch.linalg.qr(normal(width, width, seed=layer))[0]
        codes[layer] = LinearCode(slice(1, width + 1), rotation, rotation.T, normal(width, seed=5))
    points = [{k: leading(codes[k].directions, 0, r) for k in layers} for r in (0, 3, width)]
    meter = Meter(network, Batches(inputs, predicts_next=True), ALL_TOKENS)
    series = [PointSeries(codes, points, slice(1, width + 1)), PointSeries(codes, points[1:])]
    states = [block.measure(series, Checkpoint()) for block in replace(meter).blocks()]
    parts = [meter.data.head(2), meter.data.part(1, 2, 6)]
    halves = [replace(meter, data=part).measure(series, Checkpoint()) for part in parts]
    untouched = network(inputs).log_softmax(-1)
    for number, kept in enumerate((points, points[1:])):
        measured = Measurement.from_tensors(states, number)
        again = Measurement.from_tensors(halves, number)
        for row, point in enumerate(kept):
            f = network.prefix(inputs)
            for k in range(len(network.sections)):
                f = network.sections[k](codes[k].reconstruct(f, point[k]) if k in layers else f)
            outputs = network.finish(f, inputs).log_softmax(-1)
            loss = -outputs[:, :-1].gather(-1, inputs[:, 1:, None])[..., 0]
            divergence = nn.functional.kl_div(outputs, untouched, reduction="none", log_target=True).sum(-1)
            for found in (measured, again):
                assert relative_error(found.losses[1 + row], loss.sum(1)) < EXACT
                wanted = divergence[:, :-1].sum(1)
                assert (found.divergences[row] - wanted).abs().max() < 1e-11
    errors = [Measurement.from_tensors(part).errors for part in (states, halves)]
    assert errors[0][-1] == 0
    assert relative_error(*errors) < EXACT


def test_tokens_that_do_not_count_stay_as_they_are() -> None:
    pytest.importorskip("transformers")
    from tiny_models import random_model, tokens

    network = interbasis.from_hf(random_model("gpt2"))
    inputs = tokens(6, 10)
    width = network.nodes[0].width
    code = LinearCode(slice(1, width), *(torch.eye(width - 1).double(),) * 2, torch.zeros(width - 1).double())
    nothing = [{0: leading(width - 1, 0, 0)}]
    norms = network.activations_at(0, inputs)[..., 1:].norm(dim=-1)
    rises = {}
    for limit in (0.0, float(norms.median()), 2 * float(norms.max())):
        counted = CountedTokens.from_limits(network, 0, (limit,) * len(network.nodes))
        meter = Meter(network, Batches(inputs, predicts_next=True), counted)
        measured = Measurement.from_tensors([meter.measure([PointSeries({0: code}, nothing)], Checkpoint())])
        rises[limit] = measured.divergences.sum().item()
        share = meter.replaced_shares([0])[0]
        assert share == pytest.approx((norms <= limit).double().mean().item(), abs=0.02)
    none, half, everything = rises.values()
    assert none == pytest.approx(0, abs=1e-5)
    assert 1e-3 < half < everything


@pytest.mark.parametrize("activation", [nn.Identity(), nn.GELU()])
def test_the_mean_of_a_jacobian_is_that_of_automatic_differentiation(activation: nn.Module) -> None:
    case = mlp(activation)
    network = case.network
    layers = interbasis.build(network, case.inputs, edge_method=None, progress=False).layers
    shares = mean_jacobians(network, layers, Batches(case.inputs))
    for k, section in enumerate(network.sections):
        C, D = layers[k + 1].transform[1:], layers[k].inverse[:, 1:]
        spread = D * layers[k].eigenvalues[1:].sqrt()
        J = jacobians(section, network.activations_at(k, case.inputs))[:, 0, :, 0]  # [n, d_out, d_in]
        J = C @ J @ spread
        expected = J.mean(0).square().sum() / J.square().sum((1, 2)).mean()
        assert shares[k].share == pytest.approx(expected.item(), rel=EXACT)
        assert not shares[k].mixes_positions
    if isinstance(activation, nn.Identity):
        assert [row.share for row in shares] == pytest.approx([1.0] * len(shares), rel=1e-9)
    else:
        assert min(row.share for row in shares) < 0.99
