"""Results in a notebook: short texts, tables and pictures, pages in frames, and names that complete."""

import html
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import interbasis
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.trace import TraceResult
from interbasis.base.records import MAX_FIELD_SHOWN, Record
from interbasis.run.run import Run
from interbasis.show import figures
from interbasis.show.report.record import read_runs
from interbasis.show.tables import ResultTable, result_tables
from small_runs import classifier

MAX_REPR = 900
"""Characters of a result's text: a few lines of a notebook."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return classifier(tmp_path_factory.mktemp("notebook") / "run", images=True)


@pytest.fixture(scope="module")
def results(run: Run) -> list[Any]:
    feature = f"{run.graph.layer_names[1]}:1"
    return [
        run.summary(), run.modules(null_graphs=2), run.ablate(stable=False, nodes=True), run.curves(),
        run.features(top=3, ends=2, bands=1, per_band=1), run.trace(sample=3, checks=2),
        run.steer(feature, 2.0, sample=3), run.controls(bases=["lib"], stressed=[], scrambles=0),
    ]  # fmt: skip


def test_every_result_has_a_short_text_and_its_tables(results: list[Any]) -> None:
    for result in results:
        assert len(repr(result)) <= MAX_REPR
        assert repr(result).startswith(type(result).__name__)
        shown = result._repr_html_()
        tables = [part for part in result_tables(result) if isinstance(part, ResultTable)]
        assert shown.count("<table") == len(tables) > 0
        assert "tensor(" not in shown + repr(result)


def test_a_trace_is_a_picture_above_its_table(results: list[Any]) -> None:
    trace = next(result for result in results if isinstance(result, TraceResult))
    assert trace._repr_html_().index('src="data:image/png;base64,') < trace._repr_html_().index("<table")
    figure = figures.trace_graph(trace.trace, top=2)
    words = [text.get_text() for text in figure.axes[0].texts]
    assert sum(word.startswith("#") for word in words) <= 2 * len(trace.trace.layers)


def test_cells_of_a_table_are_those_of_the_terminal_and_escaped(results: list[Any]) -> None:
    ablation = next(result for result in results if isinstance(result, AblationResult))
    table = next(part for part in result_tables(ablation) if isinstance(part, ResultTable))
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", ablation._repr_html_())
    assert all(html.escape(cell) in cells for row in table.rows for cell in row)


def test_a_record_without_tables_is_a_table_of_its_fields() -> None:
    class Untabled(Record):
        name: str
        values: tuple[int, ...]

    record = Untabled(name="<b>" + "x" * 200, values=tuple(range(100)))
    assert "<tuple of 100>" in repr(record)
    assert len(repr(record)) < 3 * MAX_FIELD_SHOWN
    assert "&lt;b&gt;xxx" in record._repr_html_()


def test_pages_are_shown_in_frames(run: Run) -> None:
    for page in (run.to_html(), run.graph, run):
        assert page._repr_html_().startswith("<iframe ")
    assert len(repr(run)) < 300


def test_a_run_in_memory_has_a_report() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    report = interbasis.build(interbasis.from_torch(model), torch.randn(50, 3), progress=False).report()
    assert "What this evidence allows" in report.text
    assert report._repr_html_().startswith("<iframe ")


def test_figures_show_themselves(run: Run, results: list[Any]) -> None:
    figure: Any
    for figure in (run.figure(), run.figure("curves"), figures.interaction_graph(run.graph, top=2)):
        picture, size = figure._repr_png_()
        assert picture.startswith(b"\x89PNG")
        assert 100 < size["width"] < 900
    with pytest.raises(interbasis.InterbasisError, match="a figure of graph, required"):
        run.figure("grpah")
    with pytest.raises(interbasis.InterbasisError, match=r"run\.features"):
        run.figure("positions")


def test_examples_of_a_feature_are_pictures(run: Run, results: list[Any]) -> None:
    layer = run.graph.layer_names[1]
    shown = run.examples(f"{layer}:1")._repr_html_()
    assert shown.count('src="data:image/png;base64') >= 4
    with pytest.raises(interbasis.InterbasisError, match=r"those of 1, 2, 3; .*run\.features"):
        run.examples(f"{layer}:5")


def test_a_run_completes_to_analyses_and_what_shows_them(run: Run) -> None:
    names = dir(run)
    assert {"ablate", "features", "trace", "steer", "report", "figure", "to_html", "graph"} <= set(names)
    assert not {"given_network", "tensors", "unfinished", "stored_tensors"} & set(names)
    assert all(hasattr(type(run), name) or name in vars(run) for name in names)


def test_a_run_named_without_a_list_is_one_run(run: Run, results: list[Any], tmp_path: Path) -> None:
    assert [reported.name for reported in read_runs(str(run.folder))] == ["run"]
    with pytest.raises(interbasis.InterbasisError, match=f"the run {run.folder.resolve()} was given twice"):
        interbasis.write_report([run.folder, run], tmp_path / "report")
