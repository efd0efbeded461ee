"""Descriptions of features that a trace, a steered prompt or the page shows: made once, kept in the run."""

from pathlib import Path

import pytest
import torch

import interbasis
from interbasis.analysis import shown_labels
from interbasis.analysis.run_record import read_run
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.cli import main
from interbasis.run.run import Run
from interbasis.show.rows import layer_rows
from interbasis.show.viewer.payload import workspace_payload


@pytest.fixture
def run(tmp_path: Path) -> Run:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).double()
    inputs = torch.randn(90, 6, dtype=torch.float64)
    built = interbasis.build(interbasis.from_torch(module), (inputs, module(inputs).argmax(1)))
    return interbasis.open_run(
        built.save(tmp_path / "run"), built.network, (inputs, module(inputs).argmax(1))
    )


def test_every_node_of_a_trace_has_a_label(run: Run) -> None:
    run.features(top=2)
    trace = run.trace(sample=4).trace
    assert any(node.feature > 2 for node in trace.nodes)
    assert all(node.label for node in trace.nodes)
    described = run.features(top=9)  # from all data, as few as they are
    for node in trace.nodes:
        assert node.label == described.layers[node.layer].by_index()[node.feature].label


def test_descriptions_are_made_once_and_shown_by_readers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    name = run.layers[0].name
    run.features(top=1)
    (feature,) = shown_labels.shown_labels(run, {name: [4]}).values()
    monkeypatch.setattr(shown_labels, "_described", None)
    assert shown_labels.shown_labels(run, {name: [0, 1, 4]}).keys() == {(name, 1), (name, 4)}
    record = read_run(run.folder)
    assert record.features.layers[name].by_index().keys() == {1}  # what was asked for stays so
    rows = layer_rows(record)[0]
    assert rows.features[4] == feature
    assert rows.examples.keys() == {1, 4}
    assert run.stored(FeaturesResult) == record.features


def test_the_page_describes_what_it_opens_with(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run._repr_html_()
    assert run.stored(shown_labels.LabelsResult) is None  # a variable that is shown computes nothing
    run.features(top=2)
    run.to_html()
    page = workspace_payload(run)
    assert page.labelled
    assert page.examples == "rows"
    for layer, basis in zip(page.layers, run.layers, strict=True):
        described = [feature.index for feature in layer.features if feature.label]
        assert layer.outputs or sorted(described) == list(range(basis.first_feature, basis.features))
        assert layer.outputs or len(layer.examples) == len(described)
    monkeypatch.setattr(shown_labels, "_described", None)
    run.to_html()
    run.to_html(run.folder / "page.html")


def test_the_page_of_a_run_that_was_never_described(run: Run) -> None:
    run.to_html()
    page = workspace_payload(run)
    assert page.labelled
    assert page.examples == "rows"
    assert all(layer.outputs or layer.features[0].label for layer in page.layers)


def command(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(arguments)


def test_exported_pages_describe_what_they_open_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command(["build", "modadd", "--data", "modadd,samples=60", "--out", str(folder), "--quiet"])
    command(["export", str(folder), "--html", str(tmp_path / "plain.html"), "--no-labels"])
    assert read_run(folder).labels is None
    command(["export", str(folder), "--html", str(tmp_path / "page.html")])
    labels = read_run(folder).labels
    assert {len(layer.features) for layer in labels.layers.values()} == {32}
    assert labels.layers["mlp_in.0"].features[0].label in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_run_without_its_data_is_shown_without_labels(run: Run) -> None:
    opened = interbasis.open_run(run.folder, run.network)
    opened.to_html()
    assert opened.stored(shown_labels.LabelsResult) is None


def test_a_run_without_its_data_is_traced_without_labels(run: Run) -> None:
    opened = interbasis.open_run(run.folder, run.network)
    assert shown_labels.shown_labels(opened, {run.layers[0].name: [1]}) == {}
