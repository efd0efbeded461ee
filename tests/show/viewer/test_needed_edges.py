"""What the page says about edges required, in a real Chromium, on what `interbasis ablate` wrote."""

import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import small_runs
from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.masked_pass import top_edges
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.curves import CurvesResult
from interbasis.analysis.stored_results import load_result
from interbasis.run.run import open_run
from show.viewer import runs
from show.viewer.looking import opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

EVERYTHING = "#by=needed&output=show&nodes=200"


@pytest.fixture
def page_file(partly_ablated: Path, tmp_path: Path) -> Path:
    runs.command("export", partly_ablated, "--html", tmp_path / "page.html")
    return tmp_path / "page.html"


def in_sections(page: "Page", what: str) -> list[Any]:
    return page.evaluate(f"interbasis.parts[0].view.sections.map(({{ k, ...s }}) => {what})")


def test_bounds_are_not_taken_for_measurements(
    browser: "Browser", partly_ablated: Path, page_file: Path
) -> None:
    """At a hundred times the tolerance the page asks for no more edges than were seen to do."""
    ablation = load_result(partly_ablated, AblationResult)
    (row,) = ablation.sections.values()
    assert any(not trial.complete and trial.value > 0.9 for trial in row.trials)
    opened_run = open_run(partly_ablated)
    evaluation = Evaluation(opened_run.network, opened_run.graph, opened_run.data(ablation.data.spec))
    for loss in (1, 10, 100, 500):
        with opened(browser, f"{page_file.as_uri()}{EVERYTHING}&loss={loss}") as page:
            kept = in_sections(page, "s.chosen")[1]
        assert kept <= row.count
        value = evaluation.edges({1: top_edges(opened_run.graph.edges[1], kept)}).value
        assert value >= ablation.baseline - loss * ablation.tolerance, (loss, kept)
    with opened(browser, f"{page_file.as_uri()}#tab=curves") as page:
        titles = page.locator("figure.curve circle title").all_text_contents()
    shown = {int(title.partition(" edges")[0].replace(",", "")) for title in titles}
    there = int((opened_run.graph.inner_edges(1) > 0).sum())  # to keep more is to keep all
    assert shown == {min(trial.kept, there) for trial in row.measured}


def test_parts_of_an_ablation_are_shown_at_their_section(
    browser: "Browser", partly_ablated: Path, page_file: Path
) -> None:
    (row,) = load_result(partly_ablated, AblationResult).sections.values()
    name = row.name
    with opened(browser, f"{page_file.as_uri()}#tab=curves") as page:
        assert page.locator(".bars tr").count() == 1
        assert page.locator(".bars th").inner_text() == name
        assert page.locator(".bars .number").inner_text() == str(row.count)
        charts = page.locator("figure.curve", has=page.locator("svg"))
        assert [text.strip() for text in charts.locator("figcaption").all_inner_texts()] == [name]
        assert charts.locator(".required-text").all_text_contents() == [str(row.count)]


def test_the_weakest_edge_needed_scales_its_own_section(
    browser: "Browser", partly_ablated: Path, page_file: Path
) -> None:
    (row,) = load_result(partly_ablated, AblationResult).sections.values()
    with opened(browser, f"{page_file.as_uri()}{EVERYTHING}&scale=log") as page:
        counts = in_sections(page, "s.chosen")
        values = in_sections(page, "[...s.value.subarray(0, s.size)]")
        weights = in_sections(page, "[...s.weights]")
        status = page.locator(".status").inner_text()
    assert counts[1] == row.count
    assert len(values[0]) > 0
    for k, (strengths, found) in enumerate(zip(values, weights, strict=True)):
        epsilon = min(row.epsilon, strengths[-1]) if k == 1 else 0.8 * strengths[-1]
        spread = math.log(strengths[0] / epsilon)
        expected = [max(1 + math.log(value / strengths[0]) / spread, 0) for value in strengths]
        assert found == pytest.approx(expected, abs=1e-4), k
    assert "2 sections not ablated" in status


def test_curves_on_other_data_do_not_say_what_is_needed(
    browser: "Browser", lib: Path, tmp_path: Path
) -> None:
    """Points of the curves stand with the ablation's where they were measured on the same data."""
    sections, graph = load_result(lib, AblationResult).sections.values(), open_run(lib).graph
    there = [int((graph.inner_edges(k) > 0).sum()) for k in range(3)]  # to keep more is to keep all
    measured = [
        {min(trial.kept, most) for trial in row.measured} for row, most in zip(sections, there, strict=True)
    ]
    curves = load_result(lib, CurvesResult).curves.sections.values()
    counts = [{min(count, most) for count in curve.counts} for curve, most in zip(curves, there, strict=True)]
    assert all(more - fewer for more, fewer in zip(counts, measured, strict=True))

    def points() -> list[int]:
        runs.command("export", lib, "--html", tmp_path / "page.html")
        with opened(browser, f"{(tmp_path / 'page.html').as_uri()}#tab=curves") as page:
            charts = page.locator("figure.curve", has=page.locator("svg"))
            return [charts.nth(k).locator("circle title").count() for k in range(charts.count())]

    assert points() == [len(one | other) for one, other in zip(measured, counts, strict=True)]
    open_run(lib).curves(data="modadd,samples=100")
    assert points() == [len(one) for one in measured]


def test_a_section_that_needs_no_edge(browser: "Browser", built: Path, tmp_path: Path) -> None:
    """At a tolerance of 1 nothing is needed; the page, the comparison and the modules say so."""
    run = shutil.copytree(built / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("ablation.*"))
    result = open_run(run).ablate(tolerance=1, data="modadd,samples=100")
    assert [(row.count, row.stable_count) for row in result.sections.values()] == [(0, 0)] * 3
    assert load_result(run, AblationResult) == result
    runs.command("export", run, "--html", tmp_path / "page.html")
    with opened(browser, f"{(tmp_path / 'page.html').as_uri()}#by=needed") as page:
        assert in_sections(page, "s.size") == [0, 0, 0]
        page.get_by_role("button", name="Curves").click()
        assert page.locator(".bars .number").all_inner_texts() == ["0"] * 3
        rings = page.locator("circle.required")
        assert rings.count() == 3
        assert {float(ring.get_attribute("cx")) for ring in rings.all()} == {54.0}  # the left end


def test_the_robust_count_comes_first(browser: "Browser", tmp_path: Path) -> None:
    run = small_runs.classifier(tmp_path / "run")
    (row,) = run.ablate(sections="linear.1", tolerance=0.05, robust=True).sections.values()
    runs.command("export", run.folder, "--html", tmp_path / "page.html")
    with opened(browser, f"{(tmp_path / 'page.html').as_uri()}#by=needed") as page:
        assert in_sections(page, "s.chosen")[1] == row.robust.count >= row.count
        page.get_by_role("button", name="Curves").click()
        assert page.locator(".bars .number").inner_text() == str(row.robust.count)
        assert f"robust; plain {row.count}" in page.locator(".bars").inner_text()
