"""What the page is told about a run."""

import base64
from pathlib import Path

import numpy as np
import pytest
import torch

from interbasis import open_run
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stored_results import load_result
from interbasis.graph.store import load
from interbasis.show.rows import share_out
from interbasis.show.viewer.payload import run_payload, workspace_payload


def array(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def test_edges_are_the_graphs_own_strongest_first(lib: Path) -> None:
    graph, payload = load(lib), run_payload(lib)
    for k, section in enumerate(payload.sections):
        sources, targets = array(section.sources, "<u4"), array(section.targets, "<u4")
        values = array(section.values, "<f4")
        expected = graph.edges[k][targets.astype(int), sources.astype(int)].numpy()
        np.testing.assert_allclose(values, expected, rtol=1e-6)
        assert (np.diff(values) <= 0).all()
        assert (sources > 0).all()  # the constant's edges travel apart
        np.testing.assert_allclose(array(section.constant, "<f4"), graph.edges[k][:, 0].numpy(), rtol=1e-6)
        assert section.held == section.nonzero == len(values)
        assert section.held_share == pytest.approx(1)


def test_what_is_left_out_is_said(lib: Path) -> None:
    graph = load(lib)
    payload = workspace_payload(open_run(lib), limit=300)
    assert sum(section.held for section in payload.sections) == 300
    for k, section in enumerate(payload.sections):
        inner = graph.edges[k][1 if graph.layers[k + 1].constant else 0 :, 1:]
        squares = inner.square().flatten().sort(descending=True).values
        kept = (squares[: section.held].sum() / squares.sum()).item()
        assert section.held_share == pytest.approx(kept, rel=1e-9)
        assert section.nonzero == int((inner > 0).sum()) > section.held


def test_outputs_as_one_are_the_root_of_the_sum_of_squares(lib: Path) -> None:
    graph, payload = load(lib), run_payload(lib)
    last = array(payload.sections[-1].into_all, "<f4")
    expected = graph.edges[-1].square().sum(0).sqrt()
    expected[0] = 0
    torch.testing.assert_close(torch.tensor(last).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("limit", "sizes", "parts"),
    [(10, [2, 100, 100], [2, 4, 4]), (1000, [2, 3], [2, 3]), (0, [5], [0]), (7, [], []), (9, [9, 1], [8, 1])],
)
def test_the_limit_is_shared_out(limit: int, sizes: list[int], parts: list[int]) -> None:
    assert share_out(limit, sizes) == parts


def test_results_of_an_older_graph_are_not_shown(lib: Path, pca: Path) -> None:
    payload = run_payload(lib)
    assert all(section.edges_required for section in payload.sections)
    assert payload.notes is None
    (pca / "ablation.json").write_bytes((lib / "ablation.json").read_bytes())
    assert run_payload(pca).ablation is None
    assert not any(section.edges_required for section in run_payload(pca).sections)


def test_parts_of_an_ablation_stand_at_their_section_and_bounds_are_marked(partly_ablated: Path) -> None:
    payload = run_payload(partly_ablated)
    result = load_result(partly_ablated, AblationResult)
    ablated = {section.source: section.edges_required for section in payload.sections}
    assert [name for name, edges in ablated.items() if edges] == ["mlp_in.0"] == list(result.sections)
    expected = result.sections["mlp_in.0"]
    told = ablated["mlp_in.0"]
    assert (told.count, told.epsilon) == (expected.count, expected.epsilon)
    measured = [(trial.kept, trial.value) for trial in told.trials if trial.complete]
    assert measured == [(trial.kept, trial.value) for trial in expected.measured]
    assert len(measured) < len(told.trials)


def test_a_result_that_cannot_be_read_is_named_and_left_out(lib: Path) -> None:
    """What a later version writes, or a person breaks, must not take the graph away."""
    for name in ("ablation", "curves", "modules", "features", "examples"):
        (lib / f"{name}.json").write_text('{"format": "interbasis-result", "schema": 1, "graph": 3}')
    payload = run_payload(lib)
    assert len(payload.sections) == 3
    assert (payload.ablation, payload.curves, payload.labelled, payload.examples) == (None, None, False, None)
    assert payload.unreadable == ()  # of another graph
    file = lib / "modules.json"
    file.write_text("{")
    (problem,) = run_payload(lib).unreadable
    assert str(file) in problem
    assert "interbasis modules" in problem


def test_a_graph_without_edges_has_a_page(lib: Path) -> None:
    graph = load(lib)
    bare = type(graph)(graph.layers, [], graph.config, graph.provenance)
    assert workspace_payload(open_run(bare)).sections == ()
