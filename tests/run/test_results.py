"""Results beside a run's graph."""

import json

import pytest
import torch

import interbasis
from interbasis.run.results import load_result, load_tensors, save_result


@pytest.fixture
def run(tmp_path):
    network = interbasis.from_torch(
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    )
    interbasis.build(network, torch.randn(20, 4)).save(tmp_path / "run")
    return tmp_path / "run"


def test_what_is_saved_comes_back(run):
    save_result(run, "curves", {"counts": [3, 1]}, {"mask": torch.tensor([True, False])})
    assert load_result(run, "curves") == {"counts": [3, 1]}
    assert load_tensors(run, "curves")["mask"].tolist() == [True, False]
    assert load_result(run, "modules") is None
    assert load_tensors(run, "modules") == {}
    assert len(interbasis.load(run).layers) == 3


def test_a_result_of_an_older_graph_is_not_taken_for_this_ones(run):
    save_result(run, "curves", {"counts": [3, 1]})
    network = interbasis.from_torch(
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    )
    interbasis.build(network, torch.randn(20, 4)).save(run)
    assert load_result(run, "curves") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "not a readable"), ('{"format": 1}', "not a readable"), ("[]", "not a readable")],
)
def test_a_damaged_result_is_refused(run, text, reason):
    (run / "curves.json").write_text(text)
    with pytest.raises(interbasis.InterbasisError, match=reason):
        load_result(run, "curves")


def test_a_newer_schema_and_foreign_tensors_are_refused(run):
    path = save_result(run, "curves", {}, {"mask": torch.zeros(2)})
    (run / "curves.safetensors").write_bytes(b"other")
    with pytest.raises(interbasis.InterbasisError, match=r"does not belong to curves\.json"):
        load_tensors(run, "curves")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    with pytest.raises(interbasis.InterbasisError, match="upgrade interbasis"):
        load_result(run, "curves")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(interbasis.InterbasisError, match="expected a run"):
        save_result(tmp_path, "curves", {})
