"""Training the residual network: learns, survives being killed; the one that is shipped is what it says."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from command_line import Cli
from interbasis import InterbasisError
from interbasis.data.samples import Samples
from interbasis.graph.named_models import SHIPPED_CONV, open_data, open_model
from interbasis.models import residual
from interbasis_studies.training import cifar10_conv as training
from interbasis_studies.training.cifar10_conv import ConvRecipe, augmented, train

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(3, (90,), generator=GENERATOR)
PATTERNS = torch.randn(3, 2, 8, 8, generator=GENERATOR)
INPUTS = (PATTERNS[LABELS] + 0.5 * torch.randn(90, 2, 8, 8, generator=GENERATOR)).flatten(1)
DATA = Samples(
    90, lambda a, b: (INPUTS[a:b], LABELS[a:b]), "images", classes=("x", "y", "z"), image=(2, 8, 8)
)
SMALL = ConvRecipe(seed=1, widths=(4, 6, 8), epochs=8, batch=30)


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", 5)
    monkeypatch.setattr(training, "MAX_SHIFT", 1)
    whole = train(SMALL, (DATA, DATA), tmp_path / "whole.safetensors")

    class KilledError(Exception):
        pass

    def kill(step: int, steps: int, loss: float, accuracy: float) -> None:
        if step >= 10:
            raise KilledError

    with pytest.raises(KilledError):
        train(SMALL, (DATA, DATA), tmp_path / "parts.safetensors", kill)
    parts = train(SMALL, (DATA, DATA), tmp_path / "parts.safetensors")
    one, other = (residual.load_module(path)[0].state_dict() for path in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with safe_open(whole, "pt") as file:
        assert json.loads(file.metadata()["training"])["test_accuracy"] > 0.5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.safetensors", "whole.safetensors"]


def test_images_are_mirrored_and_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.arange(1.0, 1 + 40 * 2 * 36).view(40, 2, 6, 6)
    moved = augmented(images, torch.Generator().manual_seed(0))
    seen = set()
    for before, after in zip(images, moved, strict=True):
        padded = torch.nn.functional.pad(before, [4] * 4)
        found = [
            (down, right, mirrored)
            for down in range(9)
            for right in range(9)
            for part in (padded[:, down : down + 6, right : right + 6],)
            for mirrored in (False, True)
            if torch.equal(part.flip(2) if mirrored else part, after)
        ]
        assert len(found) >= 1
        seen.add(found[0])
    assert len(seen) > 20
    assert {mirrored for *_, mirrored in seen} == {False, True}


def test_the_shipped_network_is_the_module_and_says_how_it_was_trained() -> None:
    module, data = residual.load_module(SHIPPED_CONV)
    model = open_model("cifar10-conv")
    images = torch.rand(20, 3072, generator=GENERATOR) * 2 - 1
    assert torch.allclose(model.network(images), module(images), atol=1e-4)
    exact = residual.network(module.double())
    assert (exact(images) - module(images.double())).abs().max() < 1e-9
    assert (data, model.data_spec) == ("cifar10", "cifar10")
    with safe_open(SHIPPED_CONV, "pt") as file:
        recipe = json.loads(file.metadata()["training"])
    assert recipe["test_accuracy"] >= 0.75
    assert SHIPPED_CONV.stat().st_size < 2**21


def test_it_recognises_real_images(shared: Path) -> None:
    test = open_data(f"cifar10:{shared / 'cifar10' / 'cifar10.npz'}", "test").head(500)
    images, labels = test.all()
    network = open_model("cifar10-conv").network
    assert (network(images).argmax(1) == labels).double().mean() > 0.75


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InterbasisError, match="no such file"):
        open_model(f"cifar10-conv:{tmp_path / 'nothing'}")
    with pytest.raises(InterbasisError, match="checkpoint of a residual"):
        open_model(f"cifar10-conv:{SHIPPED_CONV.with_name('modadd-seed0.safetensors')}")


def test_a_run_of_it_shows_features_as_patches(cli: Cli, tmp_path: Path) -> None:
    """Build, ablate and look at features by the commands, on pictures of noise."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(24) % 10
    np.savez(tmp_path / "c.npz", x_train=pixels, y_train=labels, x_test=pixels[:8], y_test=labels[:8])
    run, spec = str(tmp_path / "run"), f"cifar10:{tmp_path / 'c.npz'}"
    code, output, _ = cli(
        "build", "cifar10-conv", "--data", spec, "--edge-data", f"{spec},samples=4", "--out", run
    )
    assert code == 0, output
    code, output, _ = cli("ablate", run, "--tolerance", "0.5")
    assert code == 0, output
    code, output, _ = cli("features", run, "--top", "2")
    assert code == 0, output
    stored = json.loads((tmp_path / "run" / "examples.json").read_text())["result"]
    shown = {name: layer[0]["bands"][0]["examples"][0] for name, layer in stored["layers"].items()}
    left, top, right, bottom = shown["blocks.0.conv1"]["field"]
    assert 2 / 32 <= right - left <= 3 / 32
    assert 2 / 32 <= bottom - top <= 3 / 32
    assert shown["head"]["field"] == [0, 0, 1, 1]
    assert shown["stem"]["image"].startswith("data:image/png;base64,")
