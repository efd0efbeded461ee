"""Results beside a run's graph: what stages write is what readers read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import interbasis
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.curves import CurvesResult
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import load_result, load_tensors, save_result
from interbasis.run.run import Run


def network() -> interbasis.Network:
    return interbasis.from_torch(
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).double()
    )


@pytest.fixture
def opened(tmp_path: Path) -> Run:
    """A graph that was made and saved in Python, without a name for its model."""
    model, inputs = network(), torch.randn(20, 4, dtype=torch.float64)
    graph = interbasis.build(model, inputs).graph
    graph.save(tmp_path / "run")
    return interbasis.open_run(tmp_path / "run", model, (inputs, model(inputs).argmax(-1)))


def test_what_a_stage_stores_comes_back(opened: Run) -> None:
    result = opened.ablate()
    assert load_result(opened.folder, AblationResult) == result
    masks = load_tensors(opened.folder, AblationResult)
    assert set(masks) == {f"edge_mask.{name}" for name in opened.graph.section_names}
    assert load_result(opened.folder, ModulesResult) is None
    assert load_tensors(opened.folder, ModulesResult) == {}


def test_an_unsaved_graph_gives_the_same_result(opened: Run) -> None:
    unsaved = interbasis.open_run(opened.graph, opened.network, opened.train_data)
    assert unsaved.ablate(nodes=True) == opened.ablate(nodes=True)
    assert unsaved.features(top=2) == opened.features(top=2)
    (opened.folder / "ablation.json").unlink()  # whose epsilons leave no edge of this graph
    unsaved = interbasis.open_run(replace(opened.graph), opened.network, opened.train_data)
    assert unsaved.modules(null_graphs=0) == opened.modules(null_graphs=0)


def test_a_result_of_an_older_graph_is_not_taken_for_this_ones(opened: Run) -> None:
    opened.curves()
    interbasis.build(network(), torch.randn(20, 4)).save(opened.folder)
    assert load_result(opened.folder, CurvesResult) is None


@pytest.mark.parametrize(
    ("text", "reason"), [("{", "not readable"), ('{"format": 1}', "damaged"), ("[]", "damaged")]
)
def test_a_damaged_result_is_refused(opened: Run, text: str, reason: str) -> None:
    (opened.folder / "curves.json").write_text(text)
    with pytest.raises(interbasis.InterbasisError, match=rf"{reason}.*run 'interbasis curves .*' again"):
        load_result(opened.folder, CurvesResult)


def edited(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_other_versions_and_foreign_tensors_are_refused(opened: Run) -> None:
    opened.ablate()
    path = opened.folder / "ablation.json"
    (opened.folder / "ablation.safetensors").write_bytes(b"other")
    with pytest.raises(interbasis.InterbasisError, match=r"not belong to ablation\.json"):
        load_tensors(opened.folder, AblationResult)
    edited(path, schema_version=3)
    with pytest.raises(interbasis.InterbasisError, match="upgrade interbasis"):
        load_result(opened.folder, AblationResult)


def test_a_result_of_version_0_1_is_refused_with_its_remedy(opened: Run) -> None:
    """As `interbasis ablate` of 0.1 wrote it: "schema" 1, sections in a list."""
    digest = json.loads((opened.ablate() and opened.folder / "ablation.json").read_text())["graph"]
    old = {"format": "interbasis-result", "schema": 1, "graph": digest, "result": {"sections": []}}
    (opened.folder / "ablation.json").write_text(json.dumps(old))
    with pytest.raises(interbasis.InterbasisError, match=r"older version .*'interbasis ablate .*'"):
        load_result(opened.folder, AblationResult)
    assert opened.ablate() == load_result(opened.folder, AblationResult)  # the remedy that it names
    (opened.folder / "ablation.json").write_text(json.dumps(old | {"graph": "of another build"}))
    assert load_result(opened.folder, AblationResult) is None


def test_records_refuse_what_they_do_not_know(opened: Run) -> None:
    values = opened.ablate().model_dump() | {"bound": True}
    with pytest.raises(ValueError, match="bound"):
        AblationResult.model_validate(values)
    with pytest.raises(TypeError, match="tolerence"):
        opened.ablate(tolerence=0.1)  # type: ignore[call-arg]
    with pytest.raises(interbasis.InterbasisError, match="the setting tolerance cannot be -1"):
        opened.ablate(tolerance=-1)


def test_a_folder_without_a_run_is_refused(opened: Run, tmp_path: Path) -> None:
    with pytest.raises(interbasis.InterbasisError, match="expected a run"):
        save_result(tmp_path / "nothing", opened.ablate())
