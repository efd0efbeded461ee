"""Changes of features are stored with the run, and the report's claims are about them."""

from pathlib import Path

import pytest
import torch

import interbasis
from interbasis.analysis.run_record import read_run
from interbasis.base.errors import InterbasisError
from interbasis.run.run import Run
from interbasis.show.report.claims import claims
from interbasis.show.report.record import read_runs
from small_runs import classifier


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = classifier(tmp_path_factory.mktemp("interventions") / "run")
    run.features(top=3)
    return run


def said(run: Run, allowed: bool) -> str:
    return " ".join(
        f"{claim.text} {claim.because}" for claim in claims(*read_runs(run)) if claim.allowed == allowed
    )


def test_claims_change_with_what_was_measured(run: Run) -> None:
    assert "no feature was changed" in said(run, allowed=False)
    layer = run.graph.layer_names[1]
    many = run.steer(f"{layer}:1", 3.0, samples=30, directions=5)
    one = run.steer(f"{layer}:2", -2.0, sample=3)
    trace = run.trace(sample=3, checks=4).trace
    record = read_run(run.folder)
    assert set(record.steers.values()) == {many, one}
    yes, no = said(run, allowed=True), said(run, allowed=False)
    assert f"Adding +3 standard deviations to {layer}:1 " in yes
    assert "on 30 inputs" in yes
    low, high = many.outputs[0].interval
    assert f"[{low:+.1%}, {high:+.1%}]" in yes
    assert f"to {layer}:2 changes probabilities" in yes
    assert "on one input" in yes
    assert "Only these features were changed" in no
    assert f": {layer}:1, {layer}:2." in no
    assert many.tests
    for test in many.tests:
        assert f"what its label says: {test.claim}." in (yes if test.holds else no)
    nodes = [*trace.checks.nodes, *trace.checks.spread]
    agree = sum(check.predicted * check.measured > 0 for check in nodes) / len(nodes)
    assert f"In 1 trace, {agree:.0%} of {len(nodes)} such changes" in yes + no


def test_the_same_change_is_stored_once(run: Run) -> None:
    layer = run.graph.layer_names[1]
    for by in (1.0, 1.0, 1.5):
        run.steer(f"{layer}:1", by, sample=0)
    assert len(list((run.folder / "steers").glob(f"{layer}-1-by-1*sample-0*.json"))) == 2


def test_features_that_are_set_are_stored_and_claimed(run: Run) -> None:
    layer = run.graph.layers[1]
    zero = run.intervene(f"{layer.name}:1", 0)
    given = run.intervene(f"{layer.name}:2")
    by_hand = interbasis.features.intervene(run.network, layer, run.data(), 1, 0.0)
    assert zero.accuracy == by_hand.accuracy
    assert zero.loss == by_hand.loss
    assert sum(zero.loss_interval) / 2 == pytest.approx(zero.loss[1] - zero.loss[0], rel=1e-9)
    far = run.intervene(f"{layer.name}:1", 2.5)
    moved = interbasis.features.intervene(run.network, layer, run.data(), 1, 2.5 * layer.deviation(1))
    assert far.loss == moved.loss
    assert set(read_run(run.folder).interventions.values()) == {zero, given, far}
    yes = said(run, allowed=True)
    change = zero.loss[1] - zero.loss[0]
    assert f"Setting {layer.name}:1 to its mean changes" in yes
    assert f"by {change:+.4f} nats, on 80 inputs." in yes
    assert "[{:+.4f}, {:+.4f}]".format(*zero.loss_interval) in yes
    assert f"Setting {layer.name}:2 to its mean given" in yes
    assert f"{layer.name}:2" in said(run, allowed=False)  # nothing else was changed
    assert "80 inputs" in given._repr_html_()


def test_a_neuron_is_set_to_its_mean(tmp_path: Path) -> None:
    run = classifier(tmp_path / "run", basis="neuron")
    layer = run.graph.layers[1]
    result = run.intervene(f"{layer.name}:2", 0)
    by_hand = interbasis.features.intervene(run.network, layer, run.data(), 2, float(layer.mean[2]))
    assert result.loss == by_hand.loss


def test_interventions_that_make_no_sense(run: Run) -> None:
    name = f"{run.graph.layer_names[1]}:1"
    with pytest.raises(InterbasisError, match="groups or the value"):
        run.intervene(name, 1.0, groups=[0, 0, 1, 1])
    unlabelled = interbasis.open_run(run.graph, run.network, torch.zeros(4, 12, dtype=torch.float64))
    with pytest.raises(InterbasisError, match="require labels"):
        unlabelled.intervene(name, 1.0)
