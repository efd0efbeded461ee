"""A reproduction's figures: what is drawn is what was found and what the paper has, and the page shows it."""

import json
import re
import shutil

import pytest
from PIL import Image

from interbasis.cli import main
from interbasis.paper import cifar10_figures, drawing, modadd_figures, paper, pieces, run
from interbasis.paper.common_figures import by_seed, edges_tried
from interbasis.paper.markdown import table
from interbasis.run.opened import open_run
from interbasis.run.results import load_result, load_tensors

SHOWN = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")


@pytest.fixture(scope="module")
def adding(additions):
    """The figures of modular addition by name."""
    plan, found = additions
    return {picture.name: picture for picture in modadd_figures.pictures(found, plan.out)}


@pytest.fixture(scope="module")
def seeing(pictures):
    plan, found = pictures
    return {picture.name: picture for picture in cifar10_figures.pictures(found, plan.out)}


def artists(panel, gid):
    return [artist for artist in panel.get_children() if artist.get_gid() == gid]


def heights(panel, gid):
    """Vertical places of a scatter."""
    return [y for dots in artists(panel, gid) for y in dots.get_offsets()[:, 1].tolist()]


def pieces_of(found, basis):
    return [piece for piece in by_seed(found, basis) if piece is not None]


def test_the_page_shows_every_figure_in_its_section(additions, pictures, adding, seeing, tmp_path):
    for (plan, _), drawn in ((additions, adding), (pictures, seeing)):
        found = run.report(plan)
        text = (plan.out / "report.md").read_text()
        shown = SHOWN.findall(text)
        assert shown == [figure["file"] for figure in found["figures"]]
        assert {name.removeprefix("figures/").removesuffix(".png") for name in shown} == set(drawn)
        for figure in found["figures"]:
            before = text[: text.index(f"]({figure['file']})")]
            assert before.rsplit("\n## ", 1)[1].startswith(figure["section"] + "\n")
            file = plan.out / figure["file"]
            assert file.with_suffix(".svg").read_text().startswith("<?xml")
            with Image.open(file) as image:
                assert image.width > 500
            assert file.stat().st_size < 200_000
        run.write_page(found, plan, tmp_path / f"{plan.task}.md")
        copied = SHOWN.findall((tmp_path / f"{plan.task}.md").read_text())
        assert len(copied) == len(shown)
        assert all((tmp_path / name).is_file() for name in copied)


def test_modular_addition_has_the_figures_of_the_paper(adding):
    graphs = {f"graph-seed{seed}-{basis}" for seed in (0, 1) for basis in ("lib", "pca")}
    assert set(adding) == graphs | {
        "graph-seed0-gib", "graph-clearest", "edges", "edges-tried", "nodes", "nodes-curves", "relevance",
        "monosemanticity-density", "monosemanticity-counts", "modularity",
    }  # fmt: skip


def test_counts_are_ours_and_the_papers(additions, adding):
    found = additions[1]
    names = ("attention", "MLP", "unembedding")
    for k, panel in enumerate(adding["edges"].figure.axes):
        assert panel.get_title(loc="left") == names[k]
        assert [label.get_text() for label in panel.get_xticklabels()] == ["LIB", "PCA", "GIB"]
        for basis in ("lib", "pca", "gib"):
            ours = [piece["edges"][k]["count"] for piece in pieces_of(found, basis)]
            assert heights(panel, f"counts:{basis.upper()}") == ours
            theirs = [row[k] for row in paper.STORED_EDGES[basis] if row[k] is not None]
            assert heights(panel, f"published:{basis.upper()}") == theirs
    idle = adding["relevance"].figure.axes
    assert heights(idle[0], "published:PCA") == [4, 2, 2, 1, 6]
    assert heights(idle[1], "published:PCA") == []
    assert heights(idle[1], "counts:LIB") == [len(p["idle"][1]["features"]) for p in pieces_of(found, "lib")]
    (counted,) = adding["monosemanticity-counts"].figure.axes
    assert heights(counted, "published:LIB") == [14, 13, 18, 16, 13]
    assert heights(counted, "counts:GIB") == [
        sum(row["paper"] for row in piece["monosemantic"]) for piece in pieces_of(found, "gib")
    ]


def test_curves_are_what_the_ablation_tried(additions, adding):
    plan, _ = additions
    for name, where in (("nodes-curves", "layers"), ("edges-tried", "sections")):
        panels = adding[name].figure.axes
        assert len(panels) == 2 * 3  # seeds, places
        stored = load_result(plan.folder(1, "pca"), "ablation")[where][2]
        points = sorted((p["kept"], p["value"]) for p in stored["curve"])
        drawn = [
            point
            for gid in ("tried:PCA", "bounds:PCA")
            for line in artists(panels[5], gid)
            for point in zip(line.get_xdata(), line.get_ydata(), strict=True)
        ]
        assert sorted(drawn) == points
        (upright,) = artists(panels[5], "count:PCA")
        assert upright.get_xdata()[0] == stored["count"]
    assert panels[0].get_ylabel().startswith("seed 0")


def command(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert not stop.value.code


def test_parts_of_an_ablation_are_drawn_at_their_section(additions, tmp_path):
    plan, found = additions
    shutil.copytree(plan.out, tmp_path / "out")
    folder = tmp_path / "out" / plan.folder(1, "pca").name
    (folder / "ablation.json").unlink()
    command("ablate", folder, "--sections", "mlp_in.0")
    (row,) = load_result(folder, "ablation")["sections"]
    (picture,) = edges_tried(found, tmp_path / "out")
    drawn = [artists(panel, "count:PCA") for panel in picture.figure.axes[3:]]  # of seed 1
    assert [len(lines) for lines in drawn] == [0, 1, 0]
    assert drawn[1][0].get_xdata()[0] == row["count"]


def test_an_ablation_at_another_tolerance_or_of_other_data_is_not_taken(additions, tmp_path):
    plan, _ = additions
    own = load_result(plan.folder(0, "lib"), "ablation")
    run_there = shutil.copytree(plan.folder(0, "lib"), tmp_path / "lib")
    for options in (("--tolerance", 0.9), ("--data", "modadd,p=7,samples=5")):
        command("ablate", run_there, "--edges", "--nodes", *options)
        assert load_result(run_there, "ablation") != own
        assert pieces.ablated(open_run(run_there), plan.depth) == (own, True)
        assert pieces.ablated(open_run(run_there), plan.depth) == (own, False)


def test_densities_are_of_the_first_features_of_all_seeds(additions, adding):
    found = additions[1]
    panels = adding["monosemanticity-density"].figure.axes
    assert len(panels) == 3
    for k, panel in enumerate(panels):
        (ticks,) = artists(panel, "shares:PCA")
        assert list(ticks.get_xdata()) == [
            share for piece in pieces_of(found, "pca") for share in piece["monosemantic"][k]["shares"][:9]
        ]
        assert len(artists(panel, "density:GIB")) == 1
        assert len(artists(panel, "published:PCA")) == 1
        assert not artists(panel, "published:GIB")


def test_modularity_stands_beside_the_rewired_graphs(additions, adding):
    found = additions[1]
    panels = adding["modularity"].figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == ["γ = 0.5", "γ = 1"]
    for number, panel in enumerate(panels):
        bars = {bar.get_label(): [one.get_height() for one in bar] for bar in panel.containers[::2]}
        for basis in ("lib", "pca", "gib"):
            rows = [piece["modules"][number] for piece in pieces_of(found, basis)]
            assert bars[basis.upper()] == [row["modularity"] for row in rows]
        nulls = panel.containers[1].lines[0].get_ydata()
        assert list(nulls) == [p["modules"][number]["null"]["mean"] for p in pieces_of(found, "lib")]


def test_a_graph_shows_the_edges_that_are_needed_with_their_labels(additions, adding):
    plan, found = additions
    axes = adding["graph-seed1-pca"].figure.axes[0]
    needed = load_tensors(plan.folder(1, "pca"), "ablation")["edge_mask.0"][1:, 1:25]
    (curves,) = artists(axes, "edges:0")
    assert len(curves.get_paths()) == int(needed[:24].sum())
    piece = next(p for p in found["pieces"] if (p["seed"], p["basis"]) == (1, "pca"))
    label = piece["labels"][0]["texts"][1]
    texts = [text.get_text() for text in axes.texts]
    assert any(len(text) > 5 and label.startswith(text.split(" + …")[0].rstrip("…")) for text in texts)


def test_images_have_bars_with_the_papers_marks(pictures, seeing):
    found = pictures[1]
    assert set(seeing) == {
        "edges", "edges-tried", "auroc", "explained", "intervention", "modularity", "graph-seed0-lib",
        "graph-seed0-pca",
    }  # fmt: skip
    (edges,) = seeing["edges"].figure.axes
    lib = pieces_of(found, "lib")[0]
    tops = [bar.get_y() + bar.get_height() for bar in edges.containers[0]]
    assert tops == pytest.approx([row["count"] for row in lib["edges"]])
    assert artists(edges, "line")[0].get_ydata()[0] == 25
    areas = seeing["auroc"].figure.axes
    assert [panel.get_title(loc="left") for panel in areas] == ["input", "hidden 1", "hidden 2", "output"]
    for panel, row in zip(areas, lib["directions"], strict=True):
        tops = [bar.get_y() + bar.get_height() for bar in panel.containers[0]]
        assert tops == pytest.approx(row["best_auroc"])
        assert len(row["best_auroc"]) == 4
        assert row["best_auroc"][:2] == [row["auroc"], row["second_auroc"]]
    assert [heights(panel, "published:LIB") for panel in areas] == [[], [], [0.932], []]
    (gains,) = seeing["intervention"].figure.axes
    assert heights(gains, "published:LIB") == pytest.approx([0.07])
    assert [bar.get_height() for bar in gains.containers[0]] == pytest.approx(
        [row["accuracy_after"] - row["accuracy_before"] for row in lib["directions"]]
    )


def test_bars_are_means_with_the_range_over_seeds(pictures):
    plan, found = pictures
    piece = found["pieces"][0]
    more = [{"from": row["from"], "to": row["to"], "count": 3 * row["count"]} for row in piece["edges"]]
    both = found | {"pieces": [*found["pieces"], piece | {"seed": 1, "edges": more}]}
    (panel,) = next(cifar10_figures.pictures(both, plan.out)).figure.axes
    for bar, line, row in zip(panel.containers[0], artists(panel, "range:LIB"), piece["edges"], strict=True):
        assert bar.get_y() + bar.get_height() == pytest.approx(2 * row["count"])
        assert list(line.get_ydata()) == [row["count"], 3 * row["count"]]


def test_figures_are_drawn_once_and_again_when_numbers_change(additions, monkeypatch, tmp_path):
    found = additions[1]
    drawn = []

    def pictures(found, folder):
        drawn.append(len(found["pieces"]))
        yield from list(modadd_figures._edges(found))

    monkeypatch.setattr(drawing, "_pictures", lambda task: pictures)
    first = drawing.draw_figures(found, tmp_path)
    assert drawing.draw_figures(found, tmp_path) == first
    assert drawn == [6]
    fewer = found | {"pieces": found["pieces"][:4]}
    drawing.draw_figures(fewer, tmp_path)
    assert drawn == [6, 4]
    first[0].file.unlink()
    assert drawing.draw_figures(fewer, tmp_path)[0].file.is_file()
    assert drawn == [6, 4, 4]
    assert drawing.draw_figures(found | {"pieces": []}, tmp_path) == []


def test_between_pieces_the_page_says_that_it_has_no_figures(additions):
    plan, _ = additions
    found = run.report(plan, figures=False)
    assert found["figures"] == []
    text = (plan.out / "report.md").read_text()
    assert "Figures are drawn when all is done" in text
    assert not SHOWN.findall(text)
    assert run.report(plan)["figures"]


def test_tables_have_the_papers_rows_and_the_machine_is_named(additions):
    plan, _ = additions
    machine = run.report(plan)["machine"]
    text = (plan.out / "report.md").read_text()
    for row in (
        "| LIB | *authors' files* | 0 | 133 | 82 | 633 |",
        "| GIB | *authors' files* | 0 | 131 | 82 | – |",
        "| PCA | *authors' models* | 1 | 9 | 12 | 10 |",
        "| PCA | *paper* | 4 | 6: 19, 20, 21, 22, 23, 24 | many | – | – |",
        "| LIB | *paper* | 0 | 7 | 5 | 2 | 14 |",
    ):
        assert row in text
    assert machine["cores"] >= 1
    assert machine["processor"] in text
    assert machine["torch"] in text


def test_columns_of_numbers_are_flush_right_and_signs_are_set():
    text = table(("a", "b", "c"), [("x", 1234, "-1.9"), ("`y-2%`", None, "54% (f-1)")])
    assert text.splitlines() == [
        "| a | b | c |",
        "|---|---:|---:|",
        "| x | 1,234 | −1.9 |",
        "| `y-2%` | – | 54 % (f-1) |",
    ]


def test_the_papers_numbers_are_those_of_the_authors_files(shared):
    stored = json.loads((shared / "modadd" / "paper_reference.json").read_text())
    layers = ("ln1.0", "ln2.0", "unembed")
    for basis in ("lib", "pca"):
        for seed in (0, 1):
            row = stored[f"{basis}_seed{seed}"]
            assert paper.STORED_EDGES[basis][seed] == tuple(row["edges_required"][name] for name in layers)
            counted = row["monosemantic_top10_incl_const(paper)"]
            assert paper.STORED_MONOSEMANTIC[basis][seed] == tuple(counted[name] for name in layers)
            shares = row["labels_first_term_top10"]
            assert paper.STORED_SHARES[basis][seed] == tuple(
                tuple(share for share, _ in shares[name][1:]) for name in layers
            )
            assert sum(counted[name] for name in layers) == paper.MONOSEMANTIC[basis][seed]
