"""The report: every number from the runs, every text escaped, claims only as far as they were measured."""

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import small_runs
from cases import mlp
from command_line import Cli
from interbasis import build
from interbasis.analysis.ablation.records import Control
from interbasis.analysis.stored_results import save_result
from interbasis.base.errors import InterbasisError
from interbasis.run.run import Run
from interbasis.show.html import escaped, render
from interbasis.show.report import claims, write_report
from interbasis.show.report.claims import claims_about_all
from interbasis.show.report.figures import report_figures
from interbasis.show.report.findings import findings
from interbasis.show.report.measurements import does_something, scrambled_counts, share_that_does_most
from interbasis.show.report.page import EmbeddedFigure, page
from interbasis.show.report.record import ReportedRun, read_runs
from interbasis.show.report.tables import control_table
from interbasis.show.tables import ResultTable

SCRIPT = "<script>alert(1)</script>\"'&"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """A transformer in two bases, with all results but controls; its model and a label are scripts."""
    folder = tmp_path_factory.mktemp("report")
    for basis in ("lib", "pca"):
        run = small_runs.addition(folder / basis, basis, model=SCRIPT)
        run.ablate(nodes=True)
        run.curves(metric="cross_entropy")
        run.modules(null_graphs=4)
        features = run.features(top=4)
        name, layer = next(iter(features.layers.items()))
        labelled = (layer.features[0].model_copy(update={"label": SCRIPT}), *layer.features[1:])
        changed = layer.model_copy(update={"features": labelled})
        save_result(run.folder, features.model_copy(update={"layers": features.layers | {name: changed}}))
    return [folder / "lib", folder / "pca"]


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A classifier with controls, opened for the stages."""
    run = small_runs.classifier(tmp_path_factory.mktemp("report") / "lib")
    run.features(top=4)
    run.controls(bases=("lib", "pca"), stressed=("lib",), scrambles=1)
    return run


def bare(folder: Path, **settings: Any) -> ReportedRun:
    """A run without results."""
    return reported(small_runs.addition(folder, **settings).folder)


def reported(folder: Path | None) -> ReportedRun:
    return read_runs([folder])[0]


def with_results(run: ReportedRun, **results: Any) -> ReportedRun:
    return dataclasses.replace(run, record=dataclasses.replace(run.record, **results))


def said(run: ReportedRun, allowed: bool) -> str:
    return " | ".join(f"{claim.text} ({claim.because})" for claim in claims(run) if claim.allowed == allowed)


class Page(HTMLParser):
    """Tags, addresses and text of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.headings: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [] if tag in ("meta", "img") else [tag]
        self.headings += [v for k, v in attributes if k == "id"]
        self.addresses += [v for k, v in attributes if k in ("src", "href", "action", "srcset")]
        assert not any(k.startswith("on") for k, _ in attributes)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: Any) -> None:
        self.words.append(data)


def test_the_page_is_whole_escaped_and_asks_nobody_for_anything(
    folders: list[Any], classified: Run, tmp_path: Path
) -> None:
    file = write_report([*folders, classified.folder], tmp_path / "out")
    source = file.read_text(encoding="utf-8")
    parsed = Page(source)
    assert parsed.open == []
    assert "script" not in parsed.tags
    assert "<script" not in source
    assert escaped(SCRIPT) in source
    images = [address for address in parsed.addresses if not address.startswith("#")]
    assert all(address.startswith("data:image/svg+xml;base64,") for address in images)
    assert {address[1:] for address in parsed.addresses if address.startswith("#")} == set(parsed.headings)
    assert not re.search(r"url\(|@import", source)
    assert "default-src 'none'" in source.replace("&#x27;", "'")
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    expected = (
        "graph-0-0", "graph-1-0", "graph-2-0", "edges-required-0", "nodes-required-0", "curves-0",
        "monosemanticity", "auroc-2", "positions-0", "spectra-0", "spectra-1",
    )  # fmt: skip
    assert {f"{name}.{kind}" for name in expected for kind in ("svg", "png")} <= names
    assert parsed.tags.count("img") == len(names) / 2


def test_the_numbers_in_the_tables_are_the_runs(folders: list[Any], tmp_path: Path) -> None:
    runs = read_runs([*folders, bare(tmp_path / "bare").folder])
    words = " ".join(Page(page(runs, [], "", "today")).words)
    for run in runs:
        assert run.graph.provenance.model_fingerprint[:16] in words
        for layer, width in zip(run.graph.layers, run.graph.provenance.widths, strict=True):
            assert f"{layer.features:,} of {width:,}" in words
    for run in runs[:2]:
        low, high = run.record.curves.curves.whole.area_interval
        assert f"{run.record.curves.curves.whole.area:.4f} ({low:.4f} to {high:.4f})" in words
    assert "40 samples" in words
    assert "not evaluated" in words


def test_the_page_opens_with_what_was_found_and_ends_with_where_it_comes_from(folders: list[Any]) -> None:
    run = reported(folders[0])
    pictures = [
        EmbeddedFigure("Curves", "data:,", 7.0, opening=False),
        EmbeddedFigure("Graph", "data:,", 7.0, opening=True),
    ]
    source = page([run], pictures, "", "today")
    assert source.index('alt="Graph"') < source.index('class="claims"') < source.index('alt="Curves"')
    titles = re.findall(r"<h2 id=.*?>(.*?)</h2>", source)
    assert titles == ["What was found", "What this evidence allows", "Numbers", "Figures", "Provenance"]
    sentences = [escaped(sentence) for sentence in findings(run)]
    places = [
        source.index(part)
        for part in (*sentences, "<img", 'class="claims"', "SHA-256", ">Build it again</h3>")
    ]
    assert places == sorted(places)
    assert "not measured" not in " ".join(sentences)


def test_findings_are_the_runs_numbers(folders: list[Any], tmp_path: Path) -> None:
    run = reported(folders[0])
    edges, features, trust = findings(run)
    counts, sizes = run.record.ablation.counts, run.edge_counts
    assert edges.startswith(f"{sum(counts.values()):,} of {sum(sizes.values()):,} edges (")
    for section in run.record.ablation.sections.values():
        assert f"{section.count:,} of {sizes[section.name]:,} in {section.name}" in edges
    examined = [feature for layer in run.analysed_layers for feature in layer.features]
    explained = [one for one in examined if one.evidence and one.evidence[0].share >= 0.5]
    assert f"For {len(explained)} of the {len(examined)} features examined" in features
    best = max(one.evidence[0].share for one in explained)
    assert f"({best:.0%})".replace("%", " %") in features
    assert f"z = {run.record.modules.null.z:.1f}" in trust
    first, section = next(iter(run.record.ablation.sections.items()))
    one = with_results(run, ablation=run.record.ablation.model_copy(update={"sections": {first: section}}))
    assert f"({section.name}, the only section " in findings(one)[0]
    bare_run = bare(tmp_path / "bare")
    edges, features, trust = findings(bare_run)
    carrying = sum(one.edges_for_90_percent for one in bare_run.summary.sections.values())
    assert edges.startswith(f"{carrying:,} of {sum(bare_run.edge_counts.values()):,} edges")
    assert "suffice was not measured" in edges
    assert "not examined" in features
    forbidden = [claim for claim in claims(bare_run) if not claim.allowed]
    assert f"{len(forbidden)} of the {len(claims(bare_run))} statements" in trust
    assert findings(bare(tmp_path / "none", edge_method=None))[0].startswith("No edges were computed")


def test_the_third_finding_is_the_strongest_that_was_measured(classified: Run, folders: list[Any]) -> None:
    run = reported(classified.folder)
    counted = scrambled_counts(run.record.controls.rows.values())
    sentence = findings(run)[2]
    if counted:  # a scrambled network may have nothing to say
        assert f"requires {min(counted.values()):,} edges where" in sentence
    whole = reported(folders[0])
    curves = whole.record.curves.curves
    without = with_results(whole, modules=None)
    fraction, value = share_that_does_most(curves)
    step = curves.fractions.index(fraction)
    assert value == curves.whole.values[step]
    assert step == len(curves.fractions) - 1 or min(curves.whole.faithfulness[step:]) >= 0.9
    said_at_once = findings(without)[2]
    assert ("In all sections at once" in said_at_once) == does_something(curves.whole)


def test_without_measurements_nearly_nothing_may_be_said(tmp_path: Path) -> None:
    run = bare(tmp_path / "lib")
    forbidden = said(run, False)
    for part in (
        "Nothing was ablated",
        "No controls were run",
        "were not searched for",
        "A feature means something",
    ):
        assert part in forbidden
    assert "sparser" not in said(run, True)
    assert "Anything about interactions." in said(bare(tmp_path / "none", edge_method=None), False)


def test_estimated_edges_are_quoted_with_their_error(tmp_path: Path) -> None:
    case = mlp(nn.GELU())
    run = reported(build(case.network, case.inputs, edge_group=4).save(tmp_path / "run"))
    error = run.summary.sections["linear.0"].median_relative_error
    assert f"linear.0 → linear.1 {error:.1%}" in said(run, True)
    assert "less than their errors" in said(run, False)
    assert "exact for these samples" not in said(run, True)


def test_modules_need_a_z_of_two_and_members_an_agreement(folders: list[Any]) -> None:
    run = reported(folders[0])

    def modules(z: float, agreement: float | None) -> ReportedRun:
        result = run.record.modules
        null = result.null.model_copy(update={"z": z})
        update = {"null": null, "agreement_over_seeds": agreement}
        return with_results(run, modules=result.model_copy(update=update))

    assert "not above chance" in said(modules(1.9, 1.0), False)
    assert "modular" not in said(modules(1.9, 1.0), True)
    assert "more modular than graphs with" in said(modules(2.1, 0.5), True)
    assert "A single feature belongs" in said(modules(2.1, 0.5), False)
    assert "was not measured" in said(modules(2.1, None), False)
    assert "A single feature belongs" not in said(modules(2.1, 0.95), False)


def with_areas(run: ReportedRun, **changes: dict[str, Any]) -> ReportedRun:
    """The controls with other numbers for the curve of all sections, by the names of the rows."""
    result = run.record.controls
    rows = {}
    for name in changes:
        row = result.rows[name]
        whole = row.curves.whole
        usual = {"area": 0.9, "area_interval": (0.88, 0.92), "without_edges": 0.05}
        usual |= {"value_intervals": (*whole.value_intervals[:-1], (0.8, 1.0))}
        curves = row.curves.model_copy(update={"whole": whole.model_copy(update=usual | changes[name])})
        rows[name] = row.model_copy(update={"curves": curves})
    return with_results(run, controls=result.model_copy(update={"rows": rows}))


@pytest.mark.parametrize(
    ("area", "allowed", "reason"),
    [(0.8, True, "are apart"), (0.89, False, "overlap"), (0.99, False, "other way round")],
)
def test_a_basis_is_sparser_only_where_intervals_are_apart(
    classified: Run, area: float, allowed: bool, reason: str
) -> None:
    interval = area - 0.02, area + 0.02
    run = with_areas(reported(classified.folder), lib={}, pca={"area": area, "area_interval": interval})
    assert "few edges than [pca] " in said(run, allowed)
    assert ": 0.9000" in said(run, allowed)
    assert reason in said(run, allowed)
    table_of_controls = control_table(run).to_html()
    assert "Controls of lib" in table_of_controls
    assert f"{area:.4f} ({area - 0.02:.4f} to {area + 0.02:.4f})" in table_of_controls


def test_few_edges_were_learnt_where_scrambled_networks_need_more(classified: Run) -> None:
    run = reported(classified.folder)
    rows = run.record.controls.rows
    scrambled = {name: row for name, row in rows.items() if row.network != "trained"}
    assert len(scrambled) == 2
    assert all(row.required.keys() == rows["lib"].required.keys() for row in scrambled.values())
    claim = "It was learnt that few edges suffice."
    shuffled = scrambled["lib, shuffled weights"]
    talks = {"without_edges": 0.05, "value_intervals": ((0.8, 1.0),) * 10, "area": 0.9}
    whole = shuffled.curves.whole.model_copy(update=talks)
    talking = shuffled.model_copy(update={"curves": shuffled.curves.model_copy(update={"whole": whole})})
    silent = shuffled.curves.whole.model_copy(update=talks | {"without_edges": 0.9})
    mute = shuffled.model_copy(update={"curves": shuffled.curves.model_copy(update={"whole": silent})})
    needed = sum(one.count for one in shuffled.required.values())
    assert needed > 3

    def changed(own: int, other: Control) -> ReportedRun:
        one = {name: found.model_copy(update={"count": own}) for name, found in rows["lib"].required.items()}
        lib = rows["lib"].model_copy(update={"required": one})
        result = run.record.controls.model_copy(update={"rows": {"lib": lib, "lib, shuffled weights": other}})
        return with_results(run, controls=result)

    assert f"3, against {needed:,} (lib, shuffled weights)" in said(changed(1, talking), True)
    assert claim in said(changed(needed, talking), False)
    assert claim in said(changed(1, mute), False)  # the same answer without edges: nothing to compare with


def test_halves_of_unneeded_edges_that_fail_are_counted(classified: Run) -> None:
    run = reported(classified.folder)
    stress = [section for row in run.record.controls.rows.values() for section in row.stress.values()]
    failed, tried = sum(section.failed for section in stress), sum(section.tried for section in stress)
    assert tried > 0
    assert (f"{failed} of {tried} halves" in said(run, False)) == (failed > 0)


def test_counts_on_the_data_of_the_build_are_told_from_others(folders: list[Any]) -> None:
    run = reported(folders[0])
    ablation = run.record.ablation
    assert "the basis has not seen" in said(run, False)
    others = ablation.data.model_copy(update={"fingerprint": "of other data"})
    run = with_results(run, ablation=ablation.model_copy(update={"data": others}))
    assert "the basis has not seen" not in said(run, False)
    moved = ablation.sections["attn_in.0"].model_copy(update={"count": 7, "stable_count": 70})
    sections = ablation.sections | {"attn_in.0": moved}
    run = with_results(run, ablation=ablation.model_copy(update={"sections": sections}))
    assert "mlp_in.0 70" in said(run, False)


def test_runs_together(folders: list[Any], tmp_path: Path) -> None:
    runs = read_runs(folders)
    assert claims_about_all(runs[:1]) == []
    known = claims_about_all(runs)
    assert [claim.allowed for claim in known] == [True, False]
    assert "no controls" in known[1].because
    looser = runs[1].record.ablation.model_copy(update={"tolerance": 0.1})
    assert not any(
        claim.allowed for claim in claims_about_all([runs[0], with_results(runs[1], ablation=looser)])
    )
    case = mlp(nn.ReLU())
    other = build(case.network, case.inputs).save(tmp_path / "deep" / "lib")
    several = read_runs([folders[0], other])
    assert [run.name for run in several] == [f"{folders[0].parent.name}/lib", "deep/lib"]
    assert "2 different sets of weights" in " ".join(claim.because for claim in claims_about_all(several))
    drawn = {name for name, _, _ in report_figures(several)}
    assert {"graph-0-0", "graph-1-0", "spectra-0", "spectra-1"} <= drawn


def test_parts_of_an_ablation_stand_where_they_belong(tmp_path: Path) -> None:
    opened = small_runs.classifier(tmp_path / "lib")
    count = opened.ablate(sections="linear.1").counts["linear.1"]
    run = reported(opened.folder)
    name = "linear.1 → linear.2"
    assert run.edges_required == {"linear.0 → linear.1": None, name: count, "linear.2 → output": None}
    assert set(run.nodes_required.values()) == {None}
    drawn = {file: figure for file, _, figure in report_figures([run])}
    (panel,) = drawn["edges-required-0"].axes
    assert [label.get_text() for label in panel.get_yticklabels()] == [name]
    assert "nodes-required-0" not in drawn
    assert f"{name} {count:,}." in said(run, True)
    assert ": linear.0 → linear.1, linear.2 → output." in said(run, False)
    cells = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", page([run], [], "", "today"))
    counts = {row: re.findall(r"<td>(.*?)</td>", rest)[3] for row, rest in cells if "→" in row}
    assert counts == {escaped(row): "–" if n is None else f"{n:,}" for row, n in run.edges_required.items()}


def test_what_is_not_defined_is_a_gap_and_no_claim(classified: Run) -> None:
    run = reported(classified.folder)
    result = classified.curves()
    nan = float("nan")
    undefined = {"area": nan, "area_interval": (nan, nan)}
    whole = result.curves.whole.model_copy(update=undefined)
    curves = result.model_copy(update={"curves": result.curves.model_copy(update={"whole": whole})})
    gap = with_results(run, curves=curves)
    assert "nothing that edges could carry" in said(gap, False)
    assert "faithfulness" not in said(gap, True)
    assert "curves-0" in {name for name, _, _ in report_figures([gap])}
    assert "cannot be distinguished from" in said(with_areas(run, lib={}, pca=undefined), False)
    flat = with_areas(run, lib={}, pca={"area": 0.1, "area_interval": (0.1, 0.1)})
    assert "no intervals to compare" in said(flat, False)
    chance = with_areas(run, lib={}, pca={"without_edges": 0.85, "area": 0.1, "area_interval": (0.0, 0.2)})
    assert "lib does more" not in said(chance, True)


def test_deep_networks_are_drawn_in_parts(tmp_path: Path) -> None:
    case = mlp(nn.ReLU(), widths=(5, 6, 5, 6, 5, 6, 4))
    run = reported(build(case.network, case.inputs).save(tmp_path / "run"))
    titles = [title for name, title, _ in report_figures([run]) if name.startswith("graph")]
    assert titles == [
        "Interaction graph of run, linear.0 to linear.4",
        "Interaction graph of run, linear.4 to output",
    ]


def test_the_command_and_what_it_refuses(tmp_path: Path, cli: Cli) -> None:
    run = bare(tmp_path / "lib", edge_method=None).folder
    printed = cli("report", run, "--out", tmp_path / "out", "--json").json
    assert printed["page"] == str(tmp_path / "out" / "report.html")
    assert printed["bytes"] == (tmp_path / "out" / "report.html").stat().st_size
    drawn = cli("figures", run, "--out", tmp_path / "pdf", "--format", "pdf", "--json").json["files"]
    assert drawn == [str(tmp_path / "pdf" / "spectra-0.pdf")]
    assert (tmp_path / "pdf" / "spectra-0.pdf").read_bytes().startswith(b"%PDF")
    assert "svg, png, pdf" in cli("figures", run, "--out", tmp_path / "gif", "--format", "gif").err
    assert not (tmp_path / "gif").exists()
    assert cli("report", tmp_path / "nothing", "--out", tmp_path / "out2").code == 2
    assert not (tmp_path / "out2").exists()
    assert cli("report", "--out", tmp_path / "out2").code == 2
    with pytest.raises(InterbasisError, match="twice"):
        write_report([run, run], tmp_path / "out2")
    (tmp_path / "file").write_text("mine")
    assert cli("report", run, "--out", tmp_path / "file").code == 2
    assert (tmp_path / "file").read_text() == "mine"


def test_everything_in_html_is_escaped() -> None:
    assert escaped("half \ud83d") == "half ?"
    assert render("<p title='{{ text }}'>{{ text }}</p>", text=SCRIPT).count("<") == 2
    assert render("{{ text }}", text="half \ud83d") == "half ?"
    table = ResultTable.from_cells(SCRIPT, [SCRIPT, ""], [[SCRIPT, SCRIPT]], SCRIPT).to_html()
    assert table.count("&lt;script&gt;") == 6
    assert "<script>" not in table
