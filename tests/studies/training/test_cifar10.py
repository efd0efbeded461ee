"""Training on images: learns, survives being killed, and writes checkpoints that `mlp:PATH` reads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from cases import normal
from interbasis import InterbasisError
from interbasis.data.samples import Samples
from interbasis.graph.named_models import open_model
from interbasis.models import mlp
from interbasis_studies.training import cifar10 as training
from interbasis_studies.training.cifar10 import Cifar10Recipe, epoch_order, measure_accuracy, train

INPUTS = normal(300, 12).float()
LABELS = (INPUTS @ normal(12, 3).float()).argmax(1)
DATA = Samples(300, lambda a, b: (INPUTS[a:b], LABELS[a:b]), classes=("x", "y", "z"))
SMALL = Cifar10Recipe(seed=2, hidden=(10, 8), epochs=6, batch=32, learning_rate=0.02)


def test_it_learns_and_the_checkpoint_is_the_model(tmp_path: Path) -> None:
    seen = []
    path = train(SMALL, (DATA, DATA), tmp_path / "model.safetensors", lambda *report: seen.append(report))
    module = mlp.load_module(path)
    opened = open_model(f"mlp:{path}")
    assert [type(layer).__name__ for layer in module] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert torch.allclose(opened.network(INPUTS), module(INPUTS), atol=1e-6)
    assert opened.data_spec == "cifar10"
    assert seen[-1][:2] == (60, 60)
    assert measure_accuracy(module, DATA) == seen[-1][3] > 0.6
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == sorted(module.state_dict())
        assert json.loads(file.metadata()["training"])["test_accuracy"] == seen[-1][3]
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", 7)
    whole = mlp.load_module(train(SMALL, (DATA, DATA), tmp_path / "whole.safetensors"))

    class KilledError(Exception):
        pass

    def kill(step: int, steps: int, loss: float, accuracy: float) -> None:
        if step >= 28:
            raise KilledError

    with pytest.raises(KilledError):
        train(SMALL, (DATA, DATA), tmp_path / "parts.safetensors", kill)
    with pytest.raises(InterbasisError, match="begun with batch = 32, not 16"):
        train(replace(SMALL, batch=16), (DATA, DATA), tmp_path / "parts.safetensors")
    parts = mlp.load_module(train(SMALL, (DATA, DATA), tmp_path / "parts.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_every_epoch_sees_every_sample_in_another_order() -> None:
    first, second = (epoch_order(SMALL, epoch, 300) for epoch in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, torch.arange(300))


def test_modules_are_kept_with_their_arguments(tmp_path: Path) -> None:
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(12, 5, bias=False), torch.nn.GELU("tanh"),
        torch.nn.Linear(5, 4), torch.nn.LeakyReLU(0.3), torch.nn.ReLU6(), torch.nn.Linear(4, 2),
    )  # fmt: skip
    again = mlp.load_module(mlp.save(module, tmp_path / "m.safetensors", data="npz:a.npz"))
    assert repr(again) == repr(module)
    assert torch.equal(again(INPUTS), module(INPUTS))
    assert mlp.training_data(tmp_path / "m.safetensors") == "npz:a.npz"
    with pytest.raises(InterbasisError, match="received BatchNorm1d"):
        mlp.save(torch.nn.Sequential(torch.nn.BatchNorm1d(3)), tmp_path / "n.safetensors")
