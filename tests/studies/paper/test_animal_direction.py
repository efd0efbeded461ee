"""Claims C4 to C6 as code, on small images; docs/results/cifar10_features.md has the trained models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import interbasis
from animal_direction import animal_direction, load_images, table
from interbasis import features
from interbasis.data.samples import scale_pixels
from interbasis.models import mlp
from interbasis_studies.paper.tasks.cifar10 import directions as cifar10
from interbasis_studies.paper.tasks.cifar10.directions import Images


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Images, Path, nn.Sequential]:
    """Images of 4 × 4 pixels in which animals are brighter, and a small network."""
    rng = np.random.default_rng(0)
    pairs = []
    for count in (300, 200):
        labels = torch.from_numpy(rng.integers(0, 10, count))
        bright = 60 * np.isin(labels, cifar10.ANIMALS)[:, None]
        pixels = (rng.integers(0, 190, (count, 48)) + bright).astype(np.uint8)
        pairs.append((scale_pixels(torch.from_numpy(pixels)), labels))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 10))
    path = mlp.save(module, tmp_path_factory.mktemp("cifar10") / "mlp.safetensors")
    return cifar10.Images(*pairs), path, module


def test_the_direction_is_chosen_on_training_images_and_measured_on_others(
    made: tuple[Images, Path, nn.Sequential],
) -> None:
    images, path, module = made
    result = animal_direction(images, [path])
    (model,) = result.models
    network = mlp.load(path)
    truth = torch.isin(images.test[1], torch.tensor(cifar10.ANIMALS))
    logits = module.double()(images.test[0].double()).detach()
    accuracy = (logits.argmax(1) == images.test[1]).double().mean().item()
    assert model.whole.accuracy == accuracy
    for basis, layers in model.bases.items():
        assert [row.layer for row in layers] == network.layers
        graph = interbasis.build(network, images.train, basis=basis, edge_method=None).graph
        for row, layer in zip(layers, graph.layers, strict=True):
            values = features.collect(features.FeatureReader(network.double(), layer), images.test[0])
            area = roc_auc_score(truth.numpy(), values[:, row.feature].numpy())
            assert row.auroc == pytest.approx(max(area, 1 - area), rel=1e-10)
            assert row.accuracy_before == accuracy
            assert row.feature != row.second_feature
    assert model.bases["lib"][0].auroc > 0.7
    assert table(result).count("\n") == 1 + 2 * 4


def test_images_are_read_as_everywhere_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        f"x_{split}": rng.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8) for split in ("train", "test")
    }
    labels: dict[str, Any] = {f"y_{split}": np.arange(6, dtype=np.uint8) for split in ("train", "test")}
    np.savez(tmp_path / "images.npz", **arrays, **labels)
    images = load_images(tmp_path / "images.npz")
    stored = arrays["x_test"][5, 1, 3, 2] / 127.5 - 1
    assert images.test[0][5].view(3, 32, 32)[2, 1, 3].item() == pytest.approx(stored, abs=1e-6)
    assert images.train[1].tolist() == [0, 1, 2, 3, 4, 5]


def test_bad_files_are_refused(tmp_path: Path, made: tuple[Images, Path, nn.Sequential]) -> None:
    with pytest.raises(interbasis.InterbasisError, match="no such file"):
        animal_direction(tmp_path / "none.npz", [])
    with pytest.raises(interbasis.InterbasisError, match="safetensors"):
        animal_direction(made[0], [tmp_path / "none.safetensors"])
