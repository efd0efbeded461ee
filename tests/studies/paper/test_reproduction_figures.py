"""A reproduction's figures: what is drawn is what was found and what the paper has, and the page shows it."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes._axes import Axes
from PIL import Image

from command_line import Cli
from interbasis.analysis.stages.ablate import AblateRequest, AblationResult
from interbasis.analysis.stored_results import load_result, load_tensors
from interbasis.run.run import open_run
from interbasis.show.tables import markdown_table
from interbasis_studies.paper import published, runner
from interbasis_studies.paper.figures import draw_figures
from interbasis_studies.paper.jobs import ablate_missing
from interbasis_studies.paper.tasks import open_task
from interbasis_studies.paper.tasks.classifier.figures import edges_tried
from studies.paper.conftest import Reproduced

SHOWN = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")


@pytest.fixture(scope="module")
def adding(additions: Reproduced) -> dict[Any, Any]:
    """The figures of modular addition by name."""
    plan, result = additions
    return {picture.name: picture for picture in open_task(plan).pictures(result)}


@pytest.fixture(scope="module")
def seeing(pictures: Reproduced) -> dict[Any, Any]:
    plan, result = pictures
    return {picture.name: picture for picture in open_task(plan).pictures(result)}


def artists(panel: Axes, gid: str) -> list[Any]:
    return [artist for artist in panel.get_children() if artist.get_gid() == gid]


def heights(panel: Axes, gid: str) -> list[float]:
    """Vertical places of a scatter."""
    return [y for dots in artists(panel, gid) for y in dots.get_offsets()[:, 1].tolist()]


def test_the_page_shows_every_figure_in_its_section(
    additions: Reproduced,
    pictures: Reproduced,
    adding: dict[Any, Any],
    seeing: dict[Any, Any],
    tmp_path: Path,
) -> None:
    for (plan, _), drawn in ((additions, adding), (pictures, seeing)):
        result = runner.report(plan)
        text = (plan.out / "report.md").read_text()
        shown = SHOWN.findall(text)
        assert shown == [figure.file for figure in result.figures]
        assert {name.removeprefix("figures/").removesuffix(".png") for name in shown} == set(drawn)
        for figure in result.figures:
            before = text[: text.index(f"]({figure.file})")]
            assert before.rsplit("\n## ", 1)[1].startswith(figure.section + "\n")
            file = plan.out / figure.file
            assert file.with_suffix(".svg").read_text().startswith("<?xml")
            with Image.open(file) as image:
                assert image.width > 500
            assert file.stat().st_size < 200_000
        runner.write_page(result, plan, tmp_path / f"{plan.task}.md")
        copied = SHOWN.findall((tmp_path / f"{plan.task}.md").read_text())
        assert len(copied) == len(shown)
        assert all((tmp_path / name).is_file() for name in copied)


def test_modular_addition_has_the_figures_of_the_paper(adding: dict[Any, Any]) -> None:
    graphs = {f"graph-seed{seed}-{basis}" for seed in (0, 1) for basis in ("lib", "pca")}
    assert set(adding) == graphs | {
        "graph-seed0-gib", "graph-clearest", "edges", "edges-tried", "nodes", "nodes-curves", "relevance",
        "monosemanticity-density", "monosemanticity-counts", "modularity",
    }  # fmt: skip


def test_counts_are_ours_and_the_papers(additions: Reproduced, adding: dict[Any, Any]) -> None:
    result = additions[1]
    names = ("attention", "MLP", "unembedding")
    for k, panel in enumerate(adding["edges"].figure.axes):
        assert panel.get_title(loc="left") == names[k]
        assert [label.get_text() for label in panel.get_xticklabels()] == ["LIB", "PCA", "GIB"]
        for basis in ("lib", "pca", "gib"):
            ours = [job.counts[k] for job in result.of_basis(basis)]
            assert heights(panel, f"counts:{basis.upper()}") == ours
            theirs = [row[k] for row in published.STORED_EDGES[basis] if row[k] is not None]
            assert heights(panel, f"published:{basis.upper()}") == theirs
    idle = adding["relevance"].figure.axes
    assert heights(idle[0], "published:PCA") == [4, 2, 2, 1, 6]
    assert heights(idle[1], "published:PCA") == []
    assert heights(idle[1], "counts:LIB") == [job.idle["unembed"].count for job in result.of_basis("lib")]
    (counted,) = adding["monosemanticity-counts"].figure.axes
    assert heights(counted, "published:LIB") == [14, 13, 18, 16, 13]
    assert heights(counted, "counts:GIB") == [
        sum(row.paper for row in job.monosemantic.values()) for job in result.of_basis("gib")
    ]


def test_curves_are_what_the_ablation_tried(additions: Reproduced, adding: dict[Any, Any]) -> None:
    ablation = load_result(additions[0].out / "seed1-pca", AblationResult)
    for name, stored in (
        ("nodes-curves", ablation.layers["unembed"]), ("edges-tried", ablation.sections["unembed"]),
    ):  # fmt: skip
        panels = adding[name].figure.axes
        assert len(panels) == 2 * 3  # seeds, places
        points = sorted((trial.kept, trial.value) for trial in stored.trials)
        drawn = [
            point
            for gid in ("tried:PCA", "bounds:PCA")
            for line in artists(panels[5], gid)
            for point in zip(line.get_xdata(), line.get_ydata(), strict=True)
        ]
        assert sorted(drawn) == points
        (upright,) = artists(panels[5], "count:PCA")
        assert upright.get_xdata()[0] == stored.count
    assert panels[0].get_ylabel().startswith("seed 0")


def test_parts_of_an_ablation_are_drawn_at_their_section(additions: Reproduced, tmp_path: Path) -> None:
    plan, result = additions
    folder = shutil.copytree(plan.out / "seed1-pca", tmp_path / "seed1-pca")
    (folder / "ablation.json").unlink()
    partial = open_run(folder).ablate(sections="mlp_in.0")
    (count,) = partial.counts.values()
    jobs = tuple(
        job.model_copy(update={"ablation": partial}) if job.run == "seed1-pca" else job for job in result.jobs
    )
    changed = result.model_copy(update={"jobs": jobs})
    task: Any = open_task(plan)
    (picture,) = edges_tried(changed, task.section_names(changed))
    drawn = [artists(panel, "count:PCA") for panel in picture.figure.axes[3:]]  # of seed 1
    assert [len(lines) for lines in drawn] == [0, 1, 0]
    assert drawn[1][0].get_xdata()[0] == count


def test_an_ablation_at_another_tolerance_or_of_other_data_is_not_taken(
    additions: Reproduced, tmp_path: Path, cli: Cli
) -> None:
    plan, _ = additions
    own = load_result(plan.out / "seed0-lib", AblationResult)
    opened = open_run(shutil.copytree(plan.out / "seed0-lib", tmp_path / "lib"))
    request = AblateRequest(nodes=True, metric="accuracy", tolerance=0.001)
    for settings in ({"tolerance": 0.9}, {"data": "modadd,p=7,samples=5"}):
        assert opened.ablate(nodes=True, **settings) != own
        assert ablate_missing(opened, request)
        assert opened.stored(AblationResult) == own
        assert not ablate_missing(opened, request)


def test_densities_are_of_the_first_features_of_all_seeds(
    additions: Reproduced, adding: dict[Any, Any]
) -> None:
    result = additions[1]
    panels = adding["monosemanticity-density"].figure.axes
    assert len(panels) == 3
    for layer, panel in zip(("attn_in.0", "mlp_in.0", "unembed"), panels, strict=True):
        (ticks,) = artists(panel, "shares:PCA")
        assert list(ticks.get_xdata()) == [
            share for job in result.of_basis("pca") for share in job.monosemantic[layer].shares[:9]
        ]
        assert len(artists(panel, "density:GIB")) == 1
        assert len(artists(panel, "published:PCA")) == 1
        assert not artists(panel, "published:GIB")


def test_modularity_stands_beside_the_rewired_graphs(additions: Reproduced, adding: dict[Any, Any]) -> None:
    result = additions[1]
    panels = adding["modularity"].figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == ["γ = 0.5", "γ = 1"]
    for number, panel in enumerate(panels):
        bars = {bar.get_label(): [one.get_height() for one in bar] for bar in panel.containers[::2]}
        for basis in ("lib", "pca", "gib"):
            rows = [job.partitions[number].result for job in result.of_basis(basis)]
            assert bars[basis.upper()] == [row.modularity for row in rows]
        nulls = panel.containers[1].lines[0].get_ydata()
        assert list(nulls) == [job.partitions[number].result.null.mean for job in result.of_basis("lib")]


def test_a_graph_shows_the_edges_that_are_needed_with_their_labels(
    additions: Reproduced, adding: dict[Any, Any]
) -> None:
    plan, result = additions
    axes = adding["graph-seed1-pca"].figure.axes[0]
    needed = load_tensors(plan.out / "seed1-pca", AblationResult)["edge_mask.attn_in.0"][1:, 1:25]
    (curves,) = artists(axes, "edges:0")
    assert len(curves.get_paths()) == int(needed[:24].sum())
    label = result.of_basis("pca")[1].labels["attn_in.0"][1]
    texts = [text.get_text() for text in axes.texts]
    assert any(len(text) > 5 and label.startswith(text.split(" + …")[0].rstrip("…")) for text in texts)


def test_images_have_bars_with_the_papers_marks(pictures: Reproduced, seeing: dict[Any, Any]) -> None:
    (lib,) = pictures[1].of_basis("lib")
    assert set(seeing) == {
        "edges", "edges-tried", "auroc", "explained", "intervention", "modularity", "graph-seed0-lib",
        "graph-seed0-pca",
    }  # fmt: skip
    (edges,) = seeing["edges"].figure.axes
    tops = [bar.get_y() + bar.get_height() for bar in edges.containers[0]]
    assert tops == pytest.approx(lib.counts)
    assert artists(edges, "line")[0].get_ydata()[0] == 25
    areas = seeing["auroc"].figure.axes
    assert [panel.get_title(loc="left") for panel in areas] == ["input", "hidden 1", "hidden 2", "output"]
    for panel, row in zip(areas, lib.directions.values(), strict=True):
        tops = [bar.get_y() + bar.get_height() for bar in panel.containers[0]]
        assert tops == pytest.approx(row.best_auroc)
        assert len(row.best_auroc) == 4
        assert row.best_auroc[:2] == (row.auroc, row.second_auroc)
    assert [heights(panel, "published:LIB") for panel in areas] == [[], [], [0.932], []]
    (gains,) = seeing["intervention"].figure.axes
    assert heights(gains, "published:LIB") == pytest.approx([0.07])
    assert [bar.get_height() for bar in gains.containers[0]] == pytest.approx(
        [row.accuracy_after - row.accuracy_before for row in lib.directions.values()]
    )


def test_bars_are_means_with_the_range_over_seeds(pictures: Reproduced) -> None:
    plan, result = pictures
    (job,) = result.of_basis("lib")
    sections = {
        name: row.model_copy(update={"count": 3 * row.count}) for name, row in job.ablation.sections.items()
    }
    ablation = job.ablation.model_copy(update={"sections": sections})
    second = job.model_copy(update={"seed": 1, "ablation": ablation})
    both = result.model_copy(update={"jobs": (*result.jobs, second)})
    (panel,) = next(open_task(plan).pictures(both)).figure.axes
    for bar, line, count in zip(panel.containers[0], artists(panel, "range:LIB"), job.counts, strict=True):
        assert bar.get_y() + bar.get_height() == pytest.approx(2 * count)
        assert list(line.get_ydata()) == [count, 3 * count]


def test_figures_are_drawn_once_and_again_when_numbers_change(
    additions: Reproduced, adding: dict[Any, Any], tmp_path: Path
) -> None:
    jobs = additions[1].jobs
    drawn = []

    def pictures(name: str) -> Iterator[Any]:
        drawn.append(name)
        yield adding["edges"]

    first = draw_figures(pictures("first"), jobs, tmp_path)
    assert draw_figures(pictures("again"), jobs, tmp_path) == first
    assert drawn == ["first"]
    draw_figures(pictures("fewer"), jobs[:4], tmp_path)
    assert drawn == ["first", "fewer"]
    (tmp_path / first[0].file).unlink()
    draw_figures(pictures("gone"), jobs[:4], tmp_path)
    assert (tmp_path / first[0].file).is_file()
    assert drawn == ["first", "fewer", "gone"]
    assert draw_figures(pictures("none"), (), tmp_path) == ()


def test_between_jobs_the_page_says_that_it_has_no_figures(additions: Reproduced) -> None:
    plan, _ = additions
    assert runner.report(plan, figures=False).figures == ()
    text = (plan.out / "report.md").read_text()
    assert "drawn when all is done" in text
    assert not SHOWN.findall(text)
    assert runner.report(plan).figures


def test_tables_have_the_papers_rows_and_the_machine_is_named(additions: Reproduced) -> None:
    plan, _ = additions
    machine = runner.report(plan).machine
    text = (plan.out / "report.md").read_text()
    for row in (
        "| LIB | *authors' files* | 0 | 133 | 82 | 633 |",
        "| GIB | *authors' files* | 0 | 131 | 82 | – |",
        "| PCA | *authors' models* | 1 | 9 | 12 | 10 |",
        "| PCA | *paper* | 4 | 6: 19, 20, 21, 22, 23, 24 | many | – | – |",
        "| LIB | *paper* | 0 | 7 | 5 | 2 | 14 |",
    ):
        assert row in text
    assert machine.cores >= 1
    assert machine.processor in text
    assert machine.torch in text


def test_columns_of_numbers_are_flush_right_and_signs_are_set() -> None:
    text = markdown_table(("a", "b", "c"), [("x", 1234, "-1.9"), ("`y-2%`", None, "54% (f-1)")])
    assert text.splitlines() == [
        "| a | b | c |",
        "|---|---:|---:|",
        "| x | 1,234 | −1.9 |",
        "| `y-2%` | – | 54 % (f-1) |",
    ]


def test_the_papers_numbers_are_those_of_the_authors_files(shared: Path) -> None:
    stored = json.loads((shared / "modadd" / "paper_reference.json").read_text())
    layers = ("ln1.0", "ln2.0", "unembed")
    for basis in ("lib", "pca"):
        for seed in (0, 1):
            row = stored[f"{basis}_seed{seed}"]
            assert published.STORED_EDGES[basis][seed] == tuple(
                row["edges_required"][name] for name in layers
            )
            counted = row["monosemantic_top10_incl_const(paper)"]
            assert published.STORED_MONOSEMANTIC[basis][seed] == tuple(counted[name] for name in layers)
            shares = row["labels_first_term_top10"]
            assert published.STORED_SHARES[basis][seed] == tuple(
                tuple(share for share, _ in shares[name][1:]) for name in layers
            )
            assert sum(counted[name] for name in layers) == published.MONOSEMANTIC[basis][seed]
