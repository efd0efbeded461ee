"""A run with thousands of traces: commands that show none read none, and the page holds the newest."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import small_runs
from command_line import Cli
from interbasis.analysis.run_record import read_run
from interbasis.analysis.stages.trace import TraceResult
from interbasis.analysis.stored_results import result_names
from interbasis.show.report import record as report_record
from interbasis.show.report.record import read_runs
from interbasis.show.viewer.payload import MAX_TRACES, run_payload

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TRACES = 10_000


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """A run with a real trace, newer copies of it, and thousands of older files that are not JSON."""
    run = small_runs.addition(tmp_path_factory.mktemp("many") / "run")
    run.trace(sample=0, name="real", checks=0)
    folder = run.folder / "traces"
    document = json.loads((folder / "real.json").read_text())
    for k in range(TRACES):
        path = folder / f"t{k:05d}.json"
        newer = k >= TRACES - MAX_TRACES
        document["result"]["name"] = path.stem
        path.write_text(json.dumps(document) if newer else "{")
        os.utime(path, (k, k))
    os.utime(folder / "real.json", (0, 0))
    return run.folder


@pytest.mark.parametrize(
    "words",
    [
        ["show", "{run}"],
        ["export", "{run}", "--graphml", "{out}/run.graphml", "--neuronpedia", "{out}/run.json"],
        ["compare", "{run}", "{run}"],
    ],
    ids=lambda words: words[0],
)
def test_what_shows_no_traces_reads_none(
    cli: Cli, traced: Path | None, tmp_path: Path, words: list[str]
) -> None:
    """Files that are no JSON would end these commands with a sentence."""
    ended = cli(*(word.format(run=traced, out=tmp_path) for word in words))
    assert (ended.code, ended.err) == (0, "")


def test_reports_and_figures_read_few(traced: Path | None) -> None:
    """The newest, whose checks are evidence."""
    (run,) = read_runs([traced])
    assert len(run.record.traces) == report_record.MAX_TRACES


def test_the_page_holds_the_newest_and_counts_the_others(traced: Path | None) -> None:
    payload = run_payload(traced)
    assert payload.unreadable == ()
    assert [one.name for one in payload.traces] == [f"t{k:05d}" for k in range(TRACES - MAX_TRACES, TRACES)]
    assert payload.traces_left_out == TRACES + 1 - MAX_TRACES
    assert result_names(traced, TraceResult)[0] == f"t{TRACES - 1:05d}"


def test_a_damaged_trace_costs_itself_alone(tmp_path: Path) -> None:
    run = small_runs.addition(tmp_path / "run")
    run.trace(sample=0, name="whole", checks=0)
    (run.folder / "traces" / "broken.json").write_text("[" * 100_000)
    record = read_run(run.folder, skip_unreadable=True)
    assert list(record.traces) == ["whole"]
    assert record.traces_left_out == 0
    (problem,) = record.unreadable
    assert "broken.json" in problem


def test_the_page_says_what_it_leaves_out(browser: "Browser", traced: Path | None, tmp_path: Path) -> None:
    from interbasis.show.viewer import write_page
    from show.viewer.looking import opened

    page_file = write_page([traced], tmp_path / "page.html")
    with opened(browser, page_file.as_uri() + "#tab=prompts") as page:
        words = page.locator(".trace-choice").inner_text()
        assert f"{MAX_TRACES} traces" in words
        assert "9,801 older traces" in words
