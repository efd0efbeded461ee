"""Two seeds, each trained, built, ablated and cut into modules by commands, and compared by one."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from command_line import Cli
from interbasis import open_run
from interbasis.data.modadd import split
from interbasis.graph.named_models import open_model

TRAINING = ("--modulus", 7, "--fraction", 0.6, "--steps", 60)


@pytest.fixture(scope="module")
def seeds(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[Any]]:
    """Folder with the runs 0 and 1, and what their trainings printed."""
    folder, trained = tmp_path_factory.mktemp("seeds"), []
    for seed in (0, 1):
        checkpoint, run = folder / f"{seed}.safetensors", folder / str(seed)
        trained.append(cli("train", "modadd", *TRAINING, "--seed", seed, "--out", checkpoint, "--json").json)
        assert cli("build", f"modadd:{checkpoint}", "--out", run, "-q").code == 0
        assert cli("ablate", run, "--edges", "--tolerance", 0.05, "-q").code == 0
        assert cli("modules", run, "--null-graphs", 0, "-q").code == 0
    return folder, trained


def test_data_are_the_pairs_a_model_was_trained_on(seeds: tuple[Any, list[Any]]) -> None:
    folder, trained = seeds
    model = open_model(f"modadd:{folder}/0.safetensors")
    assert trained[0]["recipe"]["fraction"] == 0.6
    assert model.data_spec == "modadd,p=7,fraction=0.6"
    assert [len(model.open_data(split=split)) for split in ("train", "test")] == [29, 20]


def test_two_trained_seeds(cli: Cli, seeds: tuple[Any, list[Any]]) -> None:
    folder, trained = seeds
    runs = [open_run(folder / str(seed)) for seed in (0, 1)]
    data = "modadd,p=7,fraction=0.6"
    compared = cli("compare", folder / "0", folder / "1", "--data", data, "--json").json
    assert not compared["same_model"]
    assert compared["matched_by"] == "measured correlation"
    assert compared["not_compared"] is None
    for run, training in zip(compared["runs"], trained, strict=True):
        assert run["metric"] == "accuracy"
        assert run["baseline"] == pytest.approx(training["test_accuracy"])
        assert run["modules"] >= 1
    pairs = split(7, 0.6)[0].inputs
    activations = [run.network.double().activations(pairs) for run in runs]
    for k, (name, layer) in enumerate(compared["layers"].items()):
        bases = [run.graph.layers[k] for run in runs]
        if all(basis.identity for basis in bases):
            continue
        features = [
            basis.to_features(f[k].double().flatten(0, -2))[:, basis.first_feature :].numpy()
            for basis, f in zip(bases, activations, strict=True)
        ]
        count = features[0].shape[1]
        correlations = np.abs(np.corrcoef(features[0].T, features[1].T)[:count, count:])
        best = correlations[linear_sum_assignment(correlations, maximize=True)]
        assert layer["match"]["mean"] == pytest.approx(best.mean(), abs=1e-8), name
        assert layer["match"]["mean"] > layer["match"]["chance"]
    for section in compared["sections"].values():
        assert None not in section["edges_required"]
        assert -1 <= section["edge_correlation"] <= 1
    shown = " ".join(cli("compare", folder / "0", folder / "1", "--data", data).out.split())
    assert "whose weights differ" in shown
    assert "Without ablation: accuracy" in shown
    assert "agreementovermatchedfeatures" in "".join(shown.split())
