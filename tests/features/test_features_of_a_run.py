"""`interbasis features` and what it stores."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import interbasis
from cases import mlp
from interbasis import features
from interbasis.cli import main
from interbasis.features.analysis import Request, analyse
from interbasis.run.results import load_result
from interbasis.training.modadd import Recipe, initial_weights


def call(*arguments: object) -> int:
    """Run the command line; its exit code."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    checkpoint = folder / "small.safetensors"
    save_file(initial_weights(Recipe(seed=3, p=11, width=16, heads=2, hidden=24)), checkpoint)
    assert call("build", f"modadd:{checkpoint}", "--out", folder / "run") == 0
    return folder / "run"


def test_a_run_is_described_and_its_results_are_stored(run, capsys):
    assert call("features", run, "--top", 3, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    stored, shown = load_result(run, "features"), load_result(run, "examples")
    assert printed == stored | {"run": str(run)}
    assert [layer["name"] for layer in stored["layers"]] == ["attn_in.0", "mlp_in.0", "unembed", "output"]
    assert [feature["index"] for feature in stored["layers"][0]["features"]] == [1, 2, 3]
    assert [feature["index"] for feature in stored["layers"][3]["features"]] == [0, 1, 2]
    first = stored["layers"][0]["features"][0]
    graph = interbasis.load(run)
    network = interbasis.modadd.load(graph.provenance.model.removeprefix("modadd:"))
    label = features.fourier(network, graph.layers[0])[1]
    assert first["label"] == label.text
    assert first["fourier"]["terms"][0]["share"] == label.share
    assert len(first["positions"]["means"]) == 3
    assert sum(first["histogram"]["counts"]) == 3 * graph.provenance.samples["data"]
    assert "positions" not in stored["layers"][1]["features"][0]
    assert len(stored["layers"][2]["features"][0]["effects"]["up"]) == 5
    assert [one["layer"] for one in stored["idle"]] == ["mlp_in.0", "unembed"]
    assert shown["kind"] == "tokens"
    example = shown["layers"][0]["features"][0]["bands"][0]["examples"][0]
    assert example["tokens"][2] == "="


def test_people_get_a_table_and_the_same_files_again(run, capsys):
    assert call("features", run, "--top", 3) == 0
    before = [(run / f"{name}.json").read_bytes() for name in ("features", "examples")]
    assert call("features", run, "--top", 3) == 0
    assert [(run / f"{name}.json").read_bytes() for name in ("features", "examples")] == before
    out = capsys.readouterr().out
    assert "attn_in.0" in out
    assert "cos(" in out
    assert "no outgoing edges" in out


def test_bad_input_ends_with_one_sentence(run, capsys, tmp_path):
    for arguments in (["--top", "0"], ["--ends", "0"], ["--data", "other"]):
        assert call("features", run, *arguments) == 2
        assert "error:" in capsys.readouterr().err
    assert call("features", tmp_path) == 2


def test_labelled_rows_are_probed():
    case = mlp(nn.ReLU())
    labels = (case.inputs[:, 0] > 0.3).long()
    graph = interbasis.build(case.network, case.inputs)
    found, shown = analyse(
        graph, case.network, (case.inputs, labels), Request(class_names=("low", "high"), output_names="wxyz")
    )
    layer = features.of(case.network, graph.layers[1])
    values = features.collect(layer, case.inputs)
    probed = found["layers"][1]["features"][0]["classes"]
    assert probed["names"] == ["low", "high"]
    assert probed["auroc"][1] == pytest.approx(features.auroc(values, labels == 1)[1].item(), rel=1e-5)
    assert probed["means"][0] == pytest.approx(values[labels == 0, 1].mean().item(), rel=1e-5)
    assert "AUROC" in found["layers"][1]["features"][0]["label"]
    assert shown["kind"] == "rows"
    example = shown["layers"][0]["features"][0]["bands"][0]["examples"][0]
    assert example["label"] == ("low", "high")[int(labels[example["sample"]])]


def test_a_network_with_other_weights_is_refused():
    case = mlp(nn.ReLU())
    graph = interbasis.build(case.network, case.inputs)
    other = interbasis.from_torch(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)))
    with pytest.raises(interbasis.InterbasisError, match="weights differ"):
        analyse(graph, other, case.inputs)


def test_features_are_a_public_name():
    assert interbasis.features is features
    assert "features" in dir(interbasis)
    assert callable(interbasis.features.direct_effects)
    assert torch.is_tensor(interbasis.features.auroc(torch.eye(2), torch.tensor([0, 1])))
