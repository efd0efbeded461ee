"""Dictionaries of a network's layers: activations in files, metrics, resuming, scores."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import interbasis
from cases import Case, modular_addition, seeded
from interbasis import InterbasisError
from interbasis.compute.checkpoints import Checkpoint, Checkpoints
from interbasis.data.batches import Batches
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.network_training import RECORD, read_training, train_dictionaries
from interbasis.dictionaries.scores import score_folder
from interbasis.dictionaries.settings import DictionarySettings, MetricKind
from interbasis.dictionaries.streams import StreamPlace, store_activations

SETTINGS: dict[str, Any] = {
    "layers": "attn_in.0,mlp_in.0", "features": 24, "active": 3, "steps": 20, "batch": 64, "rate": 5e-3,
}  # fmt: skip
FIELDS = ("encoder", "encoder_bias", "decoder", "decoder_bias")


@pytest.fixture(scope="module")
def case() -> Case:
    return modular_addition(p=7, samples=49)


def same(a: dict[str, Dictionary], b: dict[str, Dictionary]) -> bool:
    return all(
        torch.equal(getattr(a[layer], name), getattr(b[layer], name)) for layer in a for name in FIELDS
    )


def test_activations_in_a_file_are_those_of_the_network(case: Case, tmp_path: Path) -> None:
    place = StreamPlace.from_network(case.network, "mlp_in.0")
    stored = store_activations(case.network, [place], Batches(case.inputs), tmp_path / "x")
    expected = case.network.activations_at(place.index, case.inputs)[..., place.columns].flatten(0, 1)
    torch.testing.assert_close(stored.rows, expected.float())
    covariance = torch.cov(expected.T, correction=0)
    assert (stored.covariance - covariance).abs().max() < 1e-6 * covariance.abs().max()


def test_an_interrupted_file_is_cut_where_its_checkpoint_is(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    monkeypatch.setattr("interbasis.dictionaries.streams.chunk_size", lambda *_: 10)
    place = StreamPlace.from_network(case.network, "mlp_in.0")
    batches = Batches(case.inputs)
    whole = store_activations(case.network, [place], batches, tmp_path / "whole")

    def stop(done: int) -> None:
        if done == 30:
            raise KeyboardInterrupt

    def checkpoint() -> Checkpoint:
        return Checkpoints(tmp_path, "task").checkpoint("activations", len(batches))

    file = tmp_path / "x"
    with pytest.raises(KeyboardInterrupt):
        store_activations(case.network, [place], batches, file, checkpoint=checkpoint(), progress=stop)
    file.write_bytes(file.read_bytes() + b"cut in the middle")
    assert checkpoint().done == 30
    again = store_activations(case.network, [place], batches, file, checkpoint=checkpoint())
    assert torch.equal(again.rows, whole.rows)
    assert torch.equal(again.covariance, whole.covariance)


@pytest.mark.parametrize("metric", ["raw", "lib", "root", "both", "gib", "fisher"])
def test_every_metric_trains_and_is_written_as_sae_lens_does(
    case: Case, tmp_path: Path, metric: MetricKind
) -> None:
    trained = interbasis.dictionaries.train(
        case.network, case.inputs, out=tmp_path / "d", metric=metric, **SETTINGS
    )
    assert list(trained) == ["attn_in.0", "mlp_in.0"]
    assert trained["mlp_in.0"].hook == "mlp_in.0"
    record = read_training(tmp_path / "d")
    assert record.settings.metric == metric
    assert all(0 < layer.loss < 1 for layer in record.layers.values())
    for layer, dictionary in trained.items():
        read = interbasis.dictionaries.load(tmp_path / "d" / layer, layers=case.network.layers)
        assert read.hook == layer
        assert read.active == 3
        assert torch.equal(read.encoder, dictionary.encoder)
    assert not (tmp_path / "d" / ".resume").exists()
    with pytest.raises(InterbasisError, match="holds dictionaries already;"):
        interbasis.dictionaries.train(case.network, case.inputs, out=tmp_path / "d", **SETTINGS)


def test_metrics_give_different_dictionaries(case: Case) -> None:
    trained = {
        metric: interbasis.dictionaries.train(case.network, case.inputs, metric=metric, **SETTINGS)
        for metric in ("raw", "lib")
    }
    assert not same(trained["raw"], trained["lib"])


PAIR: dict[str, Any] = SETTINGS | {"layers": "mlp_in.0,unembed", "jacobian_penalty": 0.5}


@pytest.mark.parametrize("changed", [{"metric": "lib"}, {"metric": "fisher"}, PAIR | {"metric": "both"}])
def test_training_that_is_interrupted_anywhere_ends_with_the_same_bits(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    monkeypatch.setattr("interbasis.dictionaries.streams.chunk_size", lambda *_: 20)
    settings = DictionarySettings(**(SETTINGS | {"metric_samples": 30} | changed))
    whole, record = train_dictionaries(case.network, case.inputs, settings)
    calls = 0

    def stop(phase: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == limit:
            raise KeyboardInterrupt

    limit, kills = 1, 0
    while True:
        calls = 0
        try:
            again = train_dictionaries(case.network, case.inputs, settings, tmp_path / "d", progress=stop)
        except KeyboardInterrupt:
            kills += 1
            limit += 2
            continue
        break
    assert kills > 5
    assert same(again[0], whole)
    assert again[1].layers == record.layers


def test_a_penalty_trains_two_layers_on_the_same_tokens(case: Case, tmp_path: Path) -> None:
    """A small weight is nearly two trainings, a large one gives sparser Jacobians; attention is refused."""
    train = interbasis.dictionaries.train
    apart = train(case.network, case.inputs, **(SETTINGS | {"layers": PAIR["layers"]}))
    almost = train(case.network, case.inputs, **(PAIR | {"jacobian_penalty": 1e-12}))
    for layer, dictionary in apart.items():
        torch.testing.assert_close(dictionary.encoder, almost[layer].encoder, rtol=1e-3, atol=1e-4)
    together = train(case.network, case.inputs, out=tmp_path, **PAIR)
    assert not same(together, almost)
    record = read_training(tmp_path)
    assert record is not None
    assert record.settings.jacobian_penalty == 0.5
    assert all(0 < layer.loss < 1 for layer in record.layers.values())
    for changed in ({"layers": "attn_in.0,mlp_in.0"}, {"layers": "mlp_in.0"}, {"kind": "batchtopk"}):
        with pytest.raises(InterbasisError, match="a penalty on Jacobians requires"):
            train(case.network, case.inputs, **(PAIR | changed))


KILLED = """
import os, sys
import torch
from cases import modular_addition
import interbasis
case = modular_addition(p=7, samples=49)
interbasis.dictionaries.train(
    case.network, case.inputs, layers="mlp_in.0", features=24, active=3, steps=400, batch=64, out=sys.argv[1]
)
"""


def test_sigkill_loses_nothing(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "d")]
    steps = tmp_path / "d" / ".resume" / "dictionaries" / "mlp_in.0.steps.safetensors"
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not steps.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert steps.exists()
    assert not (tmp_path / "d" / RECORD).exists()
    assert subprocess.run(command, capture_output=True).returncode == 0
    whole = subprocess.run([*command[:-1], str(tmp_path / "whole")], capture_output=True)
    assert whole.returncode == 0
    weights = [tmp_path / name / "mlp_in.0" / "sae_weights.safetensors" for name in ("d", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_unfinished_work_with_other_settings_is_refused(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")

    def stop(phase: str, done: int, total: int) -> None:
        if "training" in phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interbasis.dictionaries.train(case.network, case.inputs, out=tmp_path, progress=stop, **SETTINGS)
    with pytest.raises(InterbasisError, match="begun with active = 3, not 2"):
        interbasis.dictionaries.train(case.network, case.inputs, out=tmp_path, **SETTINGS | {"active": 2})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers": "mlp_in.9"}, "there is no node layer 'mlp_in.9'; did you mean"),
        ({"layers": "output"}, "no section reads the last node layer 'output'"),
        ({"layers": ""}, "expected names separated by commas"),
        ({"layers": "mlp_in.0,mlp_in.0"}, "expected every node layer once"),
        ({"metric": "jib"}, "the setting metric cannot be 'jib'"),
        ({"features": 0}, "the setting features cannot be 0"),
        ({"active": 30}, "expected at most 24 active features, received 30"),
        ({"features": 1000}, "1000 features require at least as many tokens"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(case: Case, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InterbasisError, match=message):
        interbasis.dictionaries.train(case.network, case.inputs, **SETTINGS | changed)


def test_scores_of_a_perfect_and_of_an_empty_dictionary(case: Case) -> None:
    labels = torch.randint(7, (49,), generator=seeded(5))
    place = StreamPlace.from_network(case.network, "mlp_in.0")
    width = place.width
    eye = torch.eye(width, dtype=torch.float64)
    both = torch.cat([eye, -eye])
    perfect = interbasis.dictionaries.Dictionary(
        both, torch.zeros(2 * width), both, torch.zeros(width), hook="mlp_in.0"
    )
    scored = interbasis.dictionaries.score(case.network, perfect, (case.inputs, labels))
    assert abs(scored.rise) < 1e-9
    assert scored.recovered == pytest.approx(1.0)
    assert scored.explained == pytest.approx(1.0)
    assert scored.active == pytest.approx(width, abs=1)
    outputs = case.network(case.inputs)
    assert scored.loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, labels).item())
    x = case.network.activations_at(place.index, case.inputs)[..., place.columns]
    empty = interbasis.dictionaries.Dictionary(
        torch.zeros_like(eye), torch.zeros(width), eye, x.mean((0, 1)), hook="mlp_in.0"
    )
    scored = interbasis.dictionaries.score(case.network, empty, (case.inputs, labels))
    assert (scored.active, scored.dead) == (0.0, 1.0)
    assert scored.replaced_loss == pytest.approx(scored.mean_loss)
    assert scored.explained == pytest.approx(0.0, abs=1e-9)


def test_scores_of_a_folder_and_of_another_model(case: Case, tmp_path: Path) -> None:
    labels = torch.randint(7, (49,), generator=seeded(5))
    interbasis.dictionaries.train(case.network, case.inputs, out=tmp_path / "d", **SETTINGS)
    scores = score_folder(case.network, tmp_path / "d", (case.inputs, labels))
    assert list(scores.scores) == ["attn_in.0", "mlp_in.0"]
    assert {"rise", "recovered"} <= set(json.loads(scores.to_json())["scores"]["mlp_in.0"])
    one = score_folder(case.network, tmp_path / "d" / "mlp_in.0", (case.inputs, labels))
    assert one.scores["mlp_in.0"] == scores.scores["mlp_in.0"]
    other = modular_addition(blocks=2).network
    with pytest.raises(InterbasisError, match="of other weights; name"):
        score_folder(other, tmp_path / "d", (case.inputs, labels))
