"""Claims of labels about outputs, and their test by steering, on models that are known."""

from typing import Any

import pytest
import torch

import interbasis
from interbasis.analysis.features.claims import Claim, label_claims
from interbasis.analysis.features.records import Evidence, Feature, Histogram
from interbasis.analysis.traces.steering import Steering, random_shifts
from interbasis.run.run import Run


def described(**known: Any) -> Feature:
    return Feature(index=1, label="", histogram=Histogram(edges=(0.0, 1.0), counts=(1,)), **known)


@pytest.mark.parametrize(("place", "lag"), [("token", 0), ("previous", 1)])
def test_a_label_about_tokens_claims_what_follows_them(place: str, lag: int) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 8, (200, 12), generator=generator)
    after_five = (tokens == 5).roll(1 + lag, 1)
    after_five[:, : 1 + lag] = False
    tokens[after_five & (torch.rand(tokens.shape, generator=generator) < 0.7)] = 2
    said = {"kind": place, "text": "", "share": 0.6, "place": place, "tokens": (5,)}
    (claim,) = label_claims(described(evidence=(Evidence(**said),)), {}, tokens)
    assert claim.raised[0] == 2
    assert claim.lowered == ()
    (low,) = label_claims(described(evidence=(Evidence(**said, low=True),)), {}, tokens)
    assert (low.raised, low.lowered) == ((), claim.raised)
    (nothing,) = label_claims(
        described(evidence=(Evidence(**said | {"place": "next", "kind": "next"}),)), {}, tokens
    )
    assert nothing.raised == (5,)


def test_a_claim_is_about_the_difference_of_outputs() -> None:
    changes = torch.tensor([[1.0, 2.0, 6.0, -1.0]])
    assert Claim("", (2,), (0, 3)).value(changes).tolist() == [6.0]
    assert Claim("", (2,)).value(changes).tolist() == [4.0]
    assert Claim("", (), (3,)).value(changes).tolist() == [3.0]


@pytest.fixture(scope="module")
def run() -> Run:
    """A classifier with an input and a neuron for each class."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(240) % 8
    inputs = 3 * torch.eye(8)[labels] + 0.2 * torch.randn(240, 8, generator=generator) + 1
    module: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    for layer in (module[0], module[2]):
        torch.nn.init.eye_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    network = interbasis.from_torch(module.double())
    return interbasis.build(network, (inputs.double(), labels), basis="neuron", edge_method=None)


def test_changes_are_averaged_over_samples_with_intervals(run: Run) -> None:
    layer = run.layers[1]
    result = run.steer(f"{layer.name}:1", 1.5, samples=50)
    train_data: Any = run.train_data
    inputs, _ = train_data
    f = run.network.activations_at(1, inputs[:50])
    shift = 1.5 * layer.deviation(1) * layer.directions([1])[:, 0]
    outputs = [run.network.sections[1](g)[:, 0, 1:] for g in (f, f + shift)]
    changes = outputs[1].softmax(1) - outputs[0].softmax(1)
    for row in result.outputs:
        k, half = row.index, 2.0096 * changes[:, row.index].std() / 50**0.5
        assert row.before == pytest.approx(outputs[0][:, k].mean().item())
        assert row.probability_after - row.probability_before == pytest.approx(changes[:, k].mean().item())
        assert row.interval[0] == pytest.approx((changes[:, k].mean() - half).item(), rel=1e-3)
    assert [row.probability_after for row in result.outputs] == sorted(
        (row.probability_after for row in result.outputs), reverse=True
    )
    assert result.samples == 50


def test_a_label_that_is_true_holds_and_a_false_one_does_not(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = run.layers[1].name
    result = run.steer(f"{name}:1", 2, samples=60)
    assert len(result.tests) >= 1
    assert all(test.holds and test.change > max(test.random) for test in result.tests)
    assert result.tests[0].raised == ("0",)  # neuron 1 is that of the first class
    assert all(len(test.random) == 20 for test in result.tests)
    down = run.steer(f"{name}:1", -2, samples=60)  # the opposite of raising it
    assert [test.change > 0 for test in down.tests] == [True] * len(down.tests)
    from interbasis.analysis.features import claims

    monkeypatch.setattr(
        claims,
        "label_claims",
        lambda *a: tuple(Claim("false", c.lowered, c.raised) for c in label_claims(*a)),
    )
    assert not any(test.holds for test in run.steer(f"{name}:1", 2, samples=60).tests)


def test_random_directions_are_as_long_as_the_change_and_within_the_basis(run: Run) -> None:
    train_data: Any = run.train_data
    inputs, _ = train_data
    basis = interbasis.build(run.network, inputs[:4], edge_method=None).layers[1]  # drops directions
    steering = Steering.from_basis(run.network, basis, 1, 3.0)
    shifts = random_shifts(basis, 1, steering.change, 5)
    assert basis.features < basis.width
    assert torch.allclose(shifts.norm(dim=1), steering.change.norm().expand(5))
    assert torch.allclose(shifts @ basis.transform.T @ basis.inverse.T, shifts, atol=1e-10)
    assert shifts[:, 0].abs().max() < 1e-12  # never the constant


def test_one_way_to_name_the_inputs(run: Run) -> None:
    with pytest.raises(interbasis.InterbasisError, match="a prompt, a sample or"):
        run.steer(f"{run.layers[1].name}:1", 1, sample=0, samples=5)
    with pytest.raises(interbasis.InterbasisError, match="240 samples, received samples = 999"):
        run.steer(f"{run.layers[1].name}:1", 1, samples=999)
