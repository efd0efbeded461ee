"""The report: every number from the runs, every text escaped, claims only as far as they were measured."""

import json
import re
from html.parser import HTMLParser

import pytest
from torch import nn

import interbasis
from cases import mlp, modular_addition
from interbasis.cli import main
from interbasis.fit.build import build
from interbasis.report import statements, write_report
from interbasis.report.facts import all_facts, facts
from interbasis.report.html import element, table, text
from interbasis.report.page import page
from interbasis.report.pictures import pictures
from interbasis.report.tables import controls
from interbasis.report.together import statements_together
from interbasis.run.results import save_result
from interbasis.runtime.errors import InterbasisError

SCRIPT = "<script>alert(1)</script>\"'&"
INTERVAL = {"area": 0.9, "area_interval": [0.88, 0.92]}


def make(folder, basis="lib", **settings):
    case = modular_addition()
    return build(case.network, case.inputs, basis=basis, model=SCRIPT, **settings).save(folder)


def ablated(run, **changes):
    graph = interbasis.load(run)
    names = [layer.name for layer in graph.layers]
    rows = [
        {
            "from": names[k],
            "to": names[k + 1],
            "count": 7 + k,
            "stable_count": 7 + k,
            "value": 0.95,
            "curve": [],
        }
        for k in range(3)
    ]
    data = {"spec": "some,data", "samples": 123, "fingerprint": "f"}
    result = {
        "metric": "accuracy", "tolerance": 0.001, "baseline": 0.951, "data": data, "sections": rows,
        "edges_required": [7, 8, 9], "nodes_required": [3, 5],
        "layers": [{"name": names[k], "count": 3 + k} for k in (0, 2)],
    }  # fmt: skip
    masks = {f"edge_mask.{k}": edges > edges.median() for k, edges in enumerate(graph.edges)}
    save_result(run, "ablation", result | changes, masks)
    return rows


def curves(run, area=0.9):
    names = [layer.name for layer in interbasis.load(run).layers]
    row = {"values": [0.2, 0.9], "value_intervals": [[0.1, 0.3], [0.8, 1.0]]}
    row |= {"nothing": 0.05, "area": area, "area_interval": [area - 0.02, area + 0.02]}
    sections = [{"from": names[k], "to": names[k + 1]} | row for k in range(3)]
    return {
        "metric": "accuracy",
        "baseline": 0.951,
        "fractions": [0.1, 1.0],
        "sections": sections,
        "whole": row,
    }


def modules(run, z, agreement=1.0):
    graph = interbasis.load(run)
    layers = [{"name": layer.name, "assignment": [0] * layer.features} for layer in graph.layers]
    null = {"mean": 0.2, "deviation": 0.01, "z": z, "graphs": 50}
    found = {"modularity": 0.3, "modules": 1, "resolution": 1.0, "null": null, "layers": layers}
    save_result(run, "modules", found | {"agreement": {"seeds": agreement}})


def said(run, allowed):
    return " | ".join(f"{s.text} ({s.because})" for s in statements(facts(run)) if s.allowed == allowed)


class Page(HTMLParser):
    """Tags, addresses and text of a page."""

    def __init__(self, source: str):
        super().__init__()
        self.tags, self.addresses, self.words, self.open = [], [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.open += [] if tag in ("meta", "img") else [tag]
        self.addresses += [v for k, v in attributes if k in ("src", "href", "action", "srcset")]
        assert not any(k.startswith("on") for k, _ in attributes)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_is_whole_escaped_and_asks_nobody_for_anything(tmp_path):
    runs = [make(tmp_path / "lib"), make(tmp_path / "pca", "pca")]
    for run in runs:
        ablated(run)
        save_result(run, "curves", curves(run))
        modules(run, 3.0)
        name = interbasis.load(run).layers[0].name
        feature = {"index": 1, "label": SCRIPT, "positions": {"means": [0.1, 0.2, 0.3], "share": 0.5}}
        feature |= {"fourier": {"terms": [{"text": "cos(1x)", "share": 0.8}]}}
        feature |= {"classes": {"names": [SCRIPT, "b"], "means": [0, 1], "auroc": [0.9, 0.1]}}
        save_result(run, "features", {"layers": [{"name": name, "features": [feature]}]})
    file = write_report(runs, tmp_path / "out")
    source = file.read_text(encoding="utf-8")
    parsed = Page(source)
    assert parsed.open == []
    assert "script" not in parsed.tags
    assert "<script" not in source
    assert text(SCRIPT) in source
    assert all(address.startswith("data:image/svg+xml;base64,") for address in parsed.addresses)
    assert not re.search(r"url\(|@import", source)
    assert "default-src 'none'" in source.replace("&#x27;", "'")
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    expected = (
        "graph-0-0", "graph-1-0", "edges-required-0", "nodes-required-0", "curves-0", "monosemanticity",
        "auroc-0", "positions-0", "spectra-0",
    )  # fmt: skip
    assert {f"{name}.{kind}" for name in expected for kind in ("svg", "png")} <= names
    assert parsed.tags.count("img") == len(names) / 2


def test_the_numbers_in_the_tables_are_the_runs(tmp_path):
    runs = [make(tmp_path / "lib"), make(tmp_path / "pca", "pca")]
    ablated(runs[0])
    save_result(runs[0], "curves", curves(runs[0]))
    words = " ".join(Page(page(all_facts(runs), [], "", "today")).words)
    for run in runs:
        graph = interbasis.load(run)
        assert graph.provenance.model_fingerprint[:16] in words
        for layer, width in zip(graph.layers, graph.provenance.widths, strict=True):
            assert f"{layer.features:,} of {width:,}" in words
    assert "0.9000 (0.8800 to 0.9200)" in words
    assert "some,data: 123 samples" in words
    assert "not evaluated" in words


def test_without_measurements_nearly_nothing_may_be_said(tmp_path):
    run = make(tmp_path / "lib")
    forbidden = said(run, False)
    for part in (
        "Nothing was ablated",
        "No controls were run",
        "were not looked for",
        "A feature means something",
    ):
        assert part in forbidden
    assert "sparser" not in said(run, True)
    assert "Anything about interactions." in said(make(tmp_path / "none", edge_method=None), False)


def test_estimated_edges_are_quoted_with_their_error(tmp_path):
    case = mlp(nn.GELU())
    run = build(case.network, case.inputs, edge_group=4).save(tmp_path / "run")
    error = facts(run).summary["sections"][0]["median_relative_error"]
    assert f"linear.0 → linear.1 {error:.1%}" in said(run, True)
    assert "differ by less than their errors" in said(run, False)
    assert "exact for these samples" not in said(run, True)


def test_modules_need_a_z_of_two_and_members_an_agreement(tmp_path):
    run = make(tmp_path / "lib")
    modules(run, 1.9)
    assert "not above chance" in said(run, False)
    assert "modular" not in said(run, True)
    modules(run, 2.1, agreement=0.5)
    assert "more modular than graphs with the same degrees" in said(run, True)
    assert "A single feature belongs" in said(run, False)
    modules(run, 2.1, agreement=0.95)
    assert "A single feature belongs" not in said(run, False)


@pytest.mark.parametrize(
    ("area", "allowed", "reason"),
    [(0.8, True, "are apart"), (0.89, False, "overlap"), (0.99, False, "other way round")],
)
def test_a_basis_is_sparser_only_where_intervals_are_apart(tmp_path, area, allowed, reason):
    run = make(tmp_path / "lib")
    common = {"network": "trained", "ranking": "Ê", "stress": [{"failed": 2, "tried": 5}]}
    rows = [
        {"name": b, "basis": b, "curves": curves(run, a)} | common for b, a in (("lib", 0.9), ("pca", area))
    ]
    save_result(run, "controls", {"rows": rows})
    assert (
        "lib does more with few edges than [pca] on this model. (Areas, all sections at once: 0.9000"
        in said(run, allowed)
    )
    assert reason in said(run, allowed)
    assert "4 of 10 halves" in said(run, False)
    table_of_controls = controls(all_facts([run]))
    assert "Controls of lib" in table_of_controls
    assert f"{area:.4f} ({area - 0.02:.4f} to {area + 0.02:.4f})" in table_of_controls


def test_counts_on_the_data_of_the_build_are_told_from_others(tmp_path):
    run = make(tmp_path / "lib")
    rows = ablated(run)
    assert "data that the basis has not seen" not in said(run, False)
    own = next(iter(interbasis.load(run).provenance.data_fingerprints.values()))
    moved = [rows[0] | {"stable_count": 70}, *rows[1:]]
    ablated(run, data={"spec": "x", "samples": 1, "fingerprint": own}, sections=moved)
    assert "data that the basis has not seen" in said(run, False)
    assert "mlp_in.0 70" in said(run, False)


def test_runs_together(tmp_path):
    runs = [make(tmp_path / "lib"), make(tmp_path / "pca", "pca")]
    assert statements_together(all_facts(runs[:1])) == []
    ablated(runs[0])
    ablated(runs[1])
    known = statements_together(all_facts(runs))
    assert [s.allowed for s in known] == [True, False]
    assert "no controls" in known[1].because
    ablated(runs[1], tolerance=0.1)
    assert not any(s.allowed for s in statements_together(all_facts(runs)))
    case = mlp(nn.ReLU())
    other = build(case.network, case.inputs).save(tmp_path / "deep" / "lib")
    several = all_facts([runs[0], other])
    assert [run.name for run in several] == [f"{tmp_path.name}/lib", "deep/lib"]
    assert "2 different sets of weights" in " ".join(s.because for s in statements_together(several))
    assert {"graph-0-0", "graph-1-0", "spectra-0", "spectra-1"} <= {name for name, _, _ in pictures(several)}


def test_parts_of_an_ablation_stand_where_they_belong(tmp_path):
    run = make(tmp_path / "lib")
    rows = ablated(run)
    ablated(run, sections=rows[1:2], edges_required=[8])
    known = facts(run)
    assert known.edges_required == [None, 8, None]
    assert known.nodes_required == [3, None, 5, None]
    drawn = {name: figure for name, _, figure in pictures([known])}
    assert [len(drawn[name].axes) for name in ("edges-required-0", "nodes-required-0")] == [1, 2]
    assert drawn["edges-required-0"].axes[0].get_title(loc="left") == known.sections[1]


def test_what_is_not_defined_is_a_gap_and_no_claim(tmp_path):
    run = make(tmp_path / "lib")
    found = curves(run)
    nothing = {"area": None, "area_interval": [None, None], "values": [None, 0.9]}
    nothing |= {"value_intervals": [[None, None], [0.8, 1.0]]}
    save_result(run, "curves", found | {"whole": found["whole"] | nothing})
    assert "nothing is there to be carried" in said(run, False)
    assert "faithfulness" not in said(run, True)
    rows = [
        {"name": b, "basis": b, "network": "trained", "ranking": "Ê", "curves": c}
        for b, c in (("lib", found), ("pca", found | {"whole": found["whole"] | nothing}))
    ]
    save_result(run, "controls", {"rows": rows})
    assert "not told from a model without edges" in said(run, False)
    flat = found | {"whole": found["whole"] | {"area": 0.1, "area_interval": [0.1, 0.1]}}
    save_result(run, "controls", {"rows": [rows[0], rows[1] | {"curves": flat}]})
    assert "There are no intervals to compare" in said(run, False)
    chance = found | {"whole": found["whole"] | {"nothing": 0.85, "area": 0.1, "area_interval": [0.0, 0.2]}}
    save_result(run, "controls", {"rows": [rows[0], rows[1] | {"curves": chance}]})
    assert "lib does more" not in said(run, True)
    assert "curves-0" in {name for name, _, _ in pictures([facts(run)])}


def test_deep_networks_are_drawn_in_parts(tmp_path):
    case = mlp(nn.ReLU(), widths=(5, 6, 5, 6, 5, 6, 4))
    run = facts(build(case.network, case.inputs).save(tmp_path / "run"))
    titles = [title for name, title, _ in pictures([run]) if name.startswith("graph")]
    assert titles == [
        "Interaction graph of run, linear.0 to linear.4",
        "Interaction graph of run, linear.4 to output",
    ]


def test_the_command_and_what_it_refuses(tmp_path, capsys):
    run = make(tmp_path / "lib", edge_method=None)

    def call(*arguments: object) -> int:
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    assert call("report", run, "--out", tmp_path / "out", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"] == str(tmp_path / "out" / "report.html")
    assert printed["bytes"] == (tmp_path / "out" / "report.html").stat().st_size
    assert call("report", tmp_path / "nothing", "--out", tmp_path / "out2") == 2
    assert not (tmp_path / "out2").exists()
    assert call("report", "--out", tmp_path / "out2") == 2
    with pytest.raises(InterbasisError, match="twice"):
        write_report([run, run], tmp_path / "out2")
    (tmp_path / "file").write_text("mine")
    assert call("report", run, "--out", tmp_path / "file") == 2
    assert (tmp_path / "file").read_text() == "mine"


def test_everything_in_html_is_escaped():
    assert text("half \ud83d") == "half ?"
    assert element("p", text(SCRIPT), title=SCRIPT).count("<") == 2
    assert table([SCRIPT], [[SCRIPT, SCRIPT]], SCRIPT).count("&lt;script&gt;") == 4
    assert "<script>" not in table([SCRIPT], [[SCRIPT, SCRIPT]], SCRIPT)
