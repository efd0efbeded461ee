"""Names of models, outputs and inputs: given once, kept in the run, shown everywhere."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import interbasis
from command_line import Cli
from interbasis.analysis.stages.features import ExamplesResult
from interbasis.models import mlp
from interbasis.network.network import Network
from interbasis.show.viewer.payload import workspace_payload

CLASSES = ("ant", "bee", "cat")


class Critters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.fixture(scope="module")
def model() -> Critters:
    torch.manual_seed(0)
    return Critters()


@pytest.fixture(scope="module")
def data(model: Critters) -> tuple[Tensor, Any]:
    inputs = torch.randn(60, 4)
    return inputs, model(inputs).argmax(1)


@pytest.fixture(scope="module")
def network(model: Critters, data: tuple[Tensor, Any]) -> Network:
    return interbasis.from_torch(model, data[0][:2])


def test_names_given_in_python_are_kept_and_shown(
    network: Network, data: tuple[Tensor, Any], tmp_path: Path
) -> None:
    built = interbasis.build(
        network, data, class_names=CLASSES, feature_names=list("abcd"), rotate_last=False
    )
    built.save(tmp_path / "run")
    run = interbasis.open_run(tmp_path / "run", network, data)
    feature = f"{run.graph.layer_names[1]}:1"
    assert {output.name for output in run.steer(feature, 2.0, sample=0).outputs} == set(CLASSES)
    assert run.trace(sample=0, output="bee", checks=0).trace.target.name == "“bee”"
    assert workspace_payload(run).layers[-1].output_names == ("", *CLASSES)
    labels = [row.label for layer in run.features(top=2).layers.values() for row in layer.features]
    assert all(any(name in label for name in CLASSES) for label in labels)
    example = run.stored(ExamplesResult).layers["first"][0].bands[0].examples[0]
    assert example.names == tuple("abcd")
    assert "a=" in run.examples("first:1")._repr_html_()


def test_a_traced_module_is_called_by_its_class(network: Network, data: tuple[Tensor, Any]) -> None:
    run = interbasis.build(network, data)
    assert "LIB of Critters" in run.to_html().text
    other = interbasis.build(network, data, model_name="my net")
    assert "LIB of my net" in other.to_html().text
    assert other.summary().model == "my net"


def test_as_many_class_names_as_outputs(network: Network, data: tuple[Tensor, Any]) -> None:
    with pytest.raises(interbasis.InterbasisError, match="each of 3 outputs, received 2"):
        interbasis.build(network, data, class_names=["ant", "bee"])


def test_classes_by_name(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    mlp.save(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), tmp_path / "net.safetensors")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(50, 4)), y=np.arange(50) % 3)
    (tmp_path / "names.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")
    build = ["build", "mlp:net.safetensors", "--model-name", "critters"]
    named = [*build, "--data", "npz:data.npz,classes=names.txt", "--out", "run"]
    assert cli(*named).code == 0
    steered = cli("steer", "run", "--feature", "linear.1:1", "--by", "2", "--sample", "0", "--json").json
    assert {output["name"] for output in steered["outputs"]} == set(CLASSES)
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text())["provenance"]["model_name"] == "critters"
    )
    (tmp_path / "names.txt").write_text("ant\nbee\n", encoding="utf-8")
    code, _, err = cli(*named, "--overwrite")
    assert code == 2
    assert "each of 3 outputs, received 2" in err
    (tmp_path / "names.txt").write_text("ant\n\nbee\n", encoding="utf-8")
    assert "each and none empty" in cli(*named, "--overwrite").err
    assert "the names of classes" in cli(
        *build, "--data", "npz:data.npz,classes=no.txt", "--out", "other"
    ).err  # fmt: skip
