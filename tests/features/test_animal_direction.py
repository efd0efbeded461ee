"""Claims C4 to C6 as code, on small images; docs/results/cifar10_features.md has the trained models."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score
from torch import nn

import interbasis
from interbasis import features
from interbasis.reproduction import cifar10


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Images of 4 × 4 pixels in which animals are brighter, and a small network."""
    folder = tmp_path_factory.mktemp("cifar10")
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 300), ("test", 200)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        bright = 60 * np.isin(labels, cifar10.ANIMALS)[:, None, None, None]
        arrays[f"x_{split}"] = (rng.integers(0, 190, (count, 4, 4, 3)) + bright).astype(np.uint8)
        arrays[f"y_{split}"] = labels
    np.savez(folder / "images.npz", **arrays)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 10))
    save_file(module.state_dict(), folder / "mlp.safetensors")
    return folder, module


def test_the_direction_is_chosen_on_training_images_and_measured_on_others(made):
    folder, module = made
    result = cifar10.animal_direction(folder / "images.npz", [folder / "mlp.safetensors"])
    (model,) = result["models"]
    images = cifar10.Images.load(folder / "images.npz")
    network = cifar10.load_mlp(folder / "mlp.safetensors")
    truth = torch.isin(images.test[1], torch.tensor(cifar10.ANIMALS))
    logits = module.double()(images.test[0].double()).detach()
    accuracy = (logits.argmax(1) == images.test[1]).double().mean().item()
    assert model["whole"]["accuracy"] == accuracy
    for basis, layers in model["bases"].items():
        assert [row["layer"] for row in layers] == network.layers
        graph = interbasis.build(network, images.train, basis, edge_method=None)
        for row, layer in zip(layers, graph.layers, strict=True):
            values = features.collect(features.of(network.double(), layer), images.test[0])
            area = roc_auc_score(truth.numpy(), values[:, row["feature"]].numpy())
            assert row["auroc"] == pytest.approx(max(area, 1 - area), rel=1e-10)
            assert row["accuracy_before"] == accuracy
            assert row["feature"] != row["second_feature"]
    assert model["bases"]["lib"][0]["auroc"] > 0.7
    assert cifar10.table(result).count("\n") == 1 + 2 * 4


def test_the_colours_are_in_their_places(made):
    stored = np.load(made[0] / "images.npz")["x_test"]
    rows = cifar10.Images.load(made[0] / "images.npz").test[0]
    assert rows[5].view(3, 4, 4)[2, 1, 3].item() == pytest.approx(stored[5, 1, 3, 2] / 127.5 - 1)


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(interbasis.InterbasisError, match="expected CIFAR-10"):
        cifar10.Images.load(tmp_path / "none.npz")
    with pytest.raises(interbasis.InterbasisError, match="safetensors"):
        cifar10.load_mlp(tmp_path / "none.safetensors")
