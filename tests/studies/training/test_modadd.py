"""Training: a fast forward pass that is the transformer's, and runs that survive being killed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import interbasis
from cases import plain_transformer
from interbasis import InterbasisError, modadd
from interbasis_studies.training import modadd as training
from interbasis_studies.training.modadd import Recipe, initial_weights, logits, train
from reference import relative_error

SMALL = Recipe(seed=1, p=11, width=16, heads=2, hidden=24, steps=60)


def test_the_fast_logits_are_the_transformers() -> None:
    weights = {name: w.double() + 0.1 for name, w in initial_weights(SMALL).items()}
    tokens = modadd.pairs(11).inputs
    found = logits(weights, tokens[:, 0], tokens[:, 1])
    assert relative_error(found, plain_transformer(weights, 1, tokens)[:, -1]) <= 1e-12
    assert relative_error(found, modadd.from_weights(weights)(tokens)) <= 1e-12


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CHECK_EVERY", 20)
    whole = train(SMALL, tmp_path / "whole.safetensors")

    class KilledError(Exception):
        pass

    def kill(step: int, loss: float, accuracy: float) -> None:
        if step == 40:
            raise KilledError

    with pytest.raises(KilledError):
        train(SMALL, tmp_path / "parts.safetensors", kill)
    assert not (tmp_path / "parts.safetensors").exists()
    with pytest.raises(InterbasisError, match="begun with width = 16, not 32"):
        train(Recipe(seed=1, p=11, width=32, heads=2, hidden=24, steps=60), tmp_path / "parts.safetensors")
    parts = train(SMALL, tmp_path / "parts.safetensors")
    with safe_open(whole, "pt") as a, safe_open(parts, "pt") as b:
        assert a.keys() == b.keys()
        assert all(torch.equal(a.get_tensor(name), b.get_tensor(name)) for name in a.keys())  # noqa: SIM118
        assert '"steps_taken": 60' in a.metadata()["training"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.safetensors", "whole.safetensors"]


def test_a_run_that_is_killed_with_sigkill_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CHECK_EVERY", 20)
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    code = f"""
import os, signal
from pathlib import Path
from interbasis_studies.training import modadd
modadd.CHECK_EVERY = 20
def kill(step, loss, accuracy):
    if step == 40:
        Path({str(tmp_path)!r}, ".parts.state.abc.tmp").mkdir()  # as if a save had begun
        os.kill(os.getpid(), signal.SIGKILL)
modadd.train(modadd.{SMALL}, Path({str(tmp_path)!r}, "parts.safetensors"), kill)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert sorted(path.name for path in tmp_path.iterdir()) == [".parts.state.abc.tmp", "parts.state"]
    steps = []
    train(SMALL, tmp_path / "parts.safetensors", lambda step, loss, accuracy: steps.append(step))
    train(SMALL, tmp_path / "whole.safetensors")
    assert steps == [60]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.safetensors", "whole.safetensors"]
    whole, parts = (load_file(tmp_path / f"{name}.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_training_learns_the_training_set(tmp_path: Path) -> None:
    losses = []
    recipe = Recipe(seed=0, p=11, width=32, heads=2, hidden=64, steps=500, weight_decay=0.1)
    path = train(recipe, tmp_path / "model.safetensors", lambda step, loss, accuracy: losses.append(loss))
    training_set, _ = modadd.split(p=11)
    predicted = interbasis.modadd.load(path)(training_set.inputs).argmax(-1)
    assert losses[-1] < losses[0]
    assert (predicted == training_set.labels).all()
