"""A run, in memory and saved: what its analyses find is what it shows."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel

import interbasis
from interbasis.analysis.stages.ablate import AblateRequest
from interbasis.analysis.stages.controls import ControlsRequest
from interbasis.analysis.stages.curves import CurvesRequest
from interbasis.analysis.stages.features import FeaturesRequest, FeaturesResult
from interbasis.analysis.stages.modules import ModulesRequest
from interbasis.analysis.stages.steer import SteerRequest
from interbasis.analysis.stages.trace import TraceRequest
from interbasis.analysis.stored_results import load_result
from interbasis.compute.team import Resources
from interbasis.graph.settings import BuildConfig
from interbasis.show.viewer.payload import page_trace, workspace_payload


def small_run() -> interbasis.Run:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    inputs = torch.randn(80, 6)
    return interbasis.build(interbasis.from_torch(model), (inputs, model(inputs).argmax(1)))


def test_a_run_in_memory_shows_its_labels_ablation_and_traces(tmp_path: Path) -> None:
    run = small_run()
    assert not workspace_payload(run).labelled
    features = run.features(top=4)
    ablation = run.ablate(stable=False)
    trace = run.trace(sample=3, checks=2).trace
    page = workspace_payload(run)
    assert page.labelled
    assert [feature.label for feature in page.layers[1].features] == [
        feature.label for feature in features.layers[page.layers[1].name].features
    ]
    counts = [section.edges_required.count for section in page.sections]
    assert counts == [section.count for section in ablation.sections.values()]
    assert page.traces == (page_trace("sample-3", trace),)
    text = run.to_html(tmp_path / "graph.html").read_text(encoding="utf-8")
    assert '"labelled":true' in text
    assert "srcdoc" in run._repr_html_()


def test_results_of_a_saved_run_are_in_its_folder(tmp_path: Path) -> None:
    run = small_run()
    run.save(tmp_path / "run")
    run.features(top=3)
    assert load_result(tmp_path / "run", FeaturesResult) is not None
    assert not run.results
    assert workspace_payload(run).labelled
    assert workspace_payload(interbasis.open_run(tmp_path / "run")).labelled
    assert workspace_payload(run).name == "run"


def test_results_in_memory_are_saved_with_the_run(tmp_path: Path) -> None:
    run = small_run()
    ablation = run.ablate(stable=False)
    run.modules(null_graphs=2)
    run.trace(sample=1, checks=0)
    run.save(tmp_path / "run")
    opened = interbasis.open_run(tmp_path / "run")
    assert opened.stored(type(ablation)) == ablation
    assert opened.stored_tensors(type(ablation)).keys() == {"edge_mask.linear.0", "edge_mask.linear.1"}
    assert (tmp_path / "run" / "traces" / "sample-1.json").is_file()
    assert (tmp_path / "run" / "modules.json").is_file()


def test_a_run_is_read_without_its_network(tmp_path: Path) -> None:
    folder = small_run().save(tmp_path / "run")
    run = interbasis.open_run(folder)
    assert [layer.name for layer in run.layers] == ["linear.0", "linear.1", "output"]
    assert len(run.edges) == 2
    assert run.modules(null_graphs=0).sizes
    assert run.summary().layers.keys() == {"linear.0", "linear.1", "output"}
    with pytest.raises(interbasis.InterbasisError, match="does not name its model"):
        run.ablate()


def test_masked_output_keeps_all_edges_or_some() -> None:
    run = small_run()
    inputs = torch.randn(5, 6, dtype=torch.float64)
    masks = {0: torch.ones_like(run.edges[0], dtype=torch.bool)}
    torch.testing.assert_close(run.masked_output(inputs, edges=masks), run.network.double()(inputs))
    few = run.masked_output(inputs, nodes={0: 2})
    assert not torch.allclose(few, run.network.double()(inputs))


@pytest.mark.parametrize(
    ("method", "request_type"),
    [
        (interbasis.Run.ablate, AblateRequest),
        (interbasis.Run.curves, CurvesRequest),
        (interbasis.Run.controls, ControlsRequest),
        (interbasis.Run.modules, ModulesRequest),
        (interbasis.Run.features, FeaturesRequest),
        (interbasis.Run.trace, TraceRequest),
        (interbasis.Run.steer, SteerRequest),
        (interbasis.build, BuildConfig),
        (interbasis.build, Resources),
    ],
)
def test_parameters_are_the_fields_of_the_request(
    method: Callable[..., Any], request_type: type[BaseModel]
) -> None:
    parameters = inspect.signature(method).parameters
    for name, field in request_type.model_fields.items():
        assert name in parameters, name
        default = parameters[name].default
        assert default == (inspect.Parameter.empty if field.is_required() else field.default), name
