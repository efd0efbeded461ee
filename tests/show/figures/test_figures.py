"""Figures show the data they were given: what is drawn is read back from the artists."""

import io
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import small_runs
from cases import mlp, modular_addition
from interbasis import build, features, figures
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.show.figures.interactions import THINNEST, WIDEST, select
from interbasis.show.figures.style import COLOURS, looks, plain, shortened


@pytest.fixture(scope="module")
def graph() -> InteractionGraph:
    case = modular_addition()
    return build(case.network, case.inputs).graph


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """A small network in two bases, opened for the stages."""
    folder = tmp_path_factory.mktemp("figures")
    return {basis: small_runs.classifier(folder / basis, basis=basis) for basis in ("lib", "pca")}


@pytest.fixture(scope="module")
def curves(runs: dict[Any, Any]) -> dict[Any, Any]:
    return {basis: run.curves() for basis, run in runs.items()}


def named(figure: Figure, gid: str) -> list[Any]:
    return [artist for panel in figure.axes for artist in panel.get_children() if artist.get_gid() == gid]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def test_edges_are_drawn_between_their_features_as_wide_as_they_are_strong(graph: InteractionGraph) -> None:
    figure = figures.interaction_graph(graph, top=5, power=2)
    chosen = select(graph, top=5)
    for k, edges in enumerate(chosen.sections):
        (drawn,) = named(figure, f"edges:{k}")
        ordered = sorted(edges, key=lambda edge: edge.strength)
        strengths = np.array([edge.strength for edge in ordered])
        expected = np.maximum(THINNEST, WIDEST * (strengths / strengths.max()) ** 2)
        np.testing.assert_allclose(drawn.get_linewidths(), expected, rtol=1e-12)
        boxes = {gid: box for box in figure.axes[0].patches if (gid := box.get_gid())}
        for path, edge in zip(drawn.get_paths(), ordered, strict=True):
            line = path.vertices
            source, target = chosen.columns[k][edge.source], chosen.columns[k + 1][edge.target]
            for node, point in ((source, line[0]), (target, line[-1])):
                box: Any = boxes[f"node:{node.layer}:{node.index}"]
                assert point[1] == pytest.approx(box.get_y() + box.get_height() / 2)
            assert line[0][0] < line[-1][0]


def test_strengths_are_the_graphs_and_outputs_are_merged_by_their_norm(graph: InteractionGraph) -> None:
    masks = [edges > edges.flatten().median() for edges in graph.edges]
    needed = dict(zip(graph.section_names, masks, strict=True))
    chosen = select(graph, top=100, needed=needed)
    assert chosen.ablated == (True, True, True)
    for k in range(2):
        drawn = {
            (chosen.columns[k][e.source].index, chosen.columns[k + 1][e.target].index): e.strength
            for e in chosen.sections[k]
        }
        rows, columns = (masks[k] & (graph.edges[k] > 0)).nonzero(as_tuple=True)
        expected = {
            (j, i): graph.edges[k][i, j].item()
            for i, j in zip(rows.tolist(), columns.tolist(), strict=True)
            if i > 0 and j > 0
        }
        assert drawn == expected
        assert chosen.candidates[k] == len(expected)
    (output,) = chosen.columns[-1]
    assert output.index is None
    for edge in chosen.sections[-1]:
        j = chosen.columns[-2][edge.source].index
        merged = graph.edges[-1][:, j] * masks[-1][:, j]
        assert edge.strength == pytest.approx(merged.norm().item(), rel=1e-12)


def test_parts_of_an_ablation_are_drawn_at_their_section(runs: dict[Any, Any]) -> None:
    run = runs["lib"]
    result = run.ablate(sections="linear.1")
    masks = {"linear.1": run.stored_tensors(AblationResult)["edge_mask.linear.1"]}
    chosen = select(run.graph, top=100, needed=masks)
    others = select(run.graph, top=100)
    assert chosen.ablated == (False, True, False)
    assert chosen.candidates[1] == result.counts["linear.1"] != others.candidates[1]
    assert (chosen.sections[0], chosen.sections[2]) == (others.sections[0], others.sections[2])
    text = " ".join(words(figures.interaction_graph(run.graph, needed=masks))).replace("\n", " ")
    assert "from linear.0, linear.2, which was not" in text


def test_features_without_an_edge_that_counts_are_grey_and_modules_have_colours(
    graph: InteractionGraph,
) -> None:
    masks = [torch.zeros_like(edges, dtype=torch.bool) for edges in graph.edges]
    masks[0][1, 2] = True
    needed = dict(zip(graph.section_names, masks, strict=True))
    modules = {layer.name: [j % 2 for j in range(layer.features)] for layer in graph.layers}
    labels = {graph.layers[0].name: {2: "the <needed> $one$ of $them"}}
    figure = figures.interaction_graph(graph, top=4, needed=needed, modules=modules, labels=labels)
    boxes = {box.get_gid(): box for box in figure.axes[0].patches}
    hexes = {gid: matplotlib.colors.to_hex(box.get_edgecolor()).upper() for gid, box in boxes.items()}
    assert hexes["node:0:2"] == COLOURS[0]
    assert hexes["node:1:1"] == COLOURS[1]
    assert hexes["node:0:1"] == hexes["node:0:3"] == "#D9D9D9"
    assert any(r"\$one\$" in text for text in words(figure))
    assert any("1, added up" not in text and "all 1;" in text.replace("\n", " ") for text in words(figure))
    figure.savefig(io.BytesIO(), format="png")  # a dollar sign is no mathematics


def test_language_models_have_widths_by_strength_and_others_by_its_square(graph: InteractionGraph) -> None:
    assert any("Ê²;" in text.replace("\n", " ") for text in words(figures.interaction_graph(graph)))
    other = graph.provenance.model_copy(update={"predicts_next": True})
    text = " ".join(
        words(figures.interaction_graph(type(graph)(graph.layers, graph.edges, graph.config, other)))
    )
    assert "Ê;" in text.replace("\n", " ")


def test_rotated_outputs_are_features_of_their_own() -> None:
    case = mlp(nn.ReLU())
    chosen = select(build(case.network, case.inputs).graph)
    assert [node.index for node in chosen.columns[-1]] == [1, 2, 3, 4]


def test_pictures_that_cannot_be_drawn_are_refused(
    graph: InteractionGraph, runs: dict[Any, Any], curves: dict[Any, Any]
) -> None:
    with pytest.raises(InterbasisError, match="two layers of 4"):
        figures.interaction_graph(graph, layers=(2, 2))
    with pytest.raises(InterbasisError, match="masks of needed edges"):
        figures.interaction_graph(graph, needed={"mlp_in.0": graph.edges[0]})
    with pytest.raises(InterbasisError, match="above 0"):
        figures.interaction_graph(graph, power=0)
    with pytest.raises(InterbasisError, match="same seeds for every basis"):
        figures.required({"lib": [[1, 2]], "pca": []}, ["a", "b"])
    with pytest.raises(InterbasisError, match="at least one run"):
        figures.ablation_curves({})
    with pytest.raises(InterbasisError, match=r"'two' are of cross_entropy"):
        figures.ablation_curves({"one": curves["lib"], "two": runs["pca"].curves(metric="cross_entropy")})
    with pytest.raises(InterbasisError, match="between 0 and 1"):
        figures.auroc_bars({"a": {"lib": [1.2]}}, "x")
    with pytest.raises(InterbasisError, match="position profile"):
        figures.position_profiles(runs["lib"].features(top=2).layers["linear.0"].features)
    with pytest.raises(InterbasisError, match="same node layers"):
        figures.eigenvalue_spectra({})


def test_curves_and_their_bands_are_the_results(curves: dict[Any, Any]) -> None:
    figure = figures.ablation_curves(curves)
    for basis, result in curves.items():
        rows = [*result.curves.sections.values(), result.curves.whole]
        for panel, row in zip(figure.axes, rows, strict=True):
            lines = {line.get_gid(): line for line in panel.lines}
            assert lines[f"curve:{basis}"].get_xdata().tolist() == list(result.curves.fractions)
            assert lines[f"curve:{basis}"].get_ydata().tolist() == list(row.values)
            band: Any = panel.collections[list(curves).index(basis)]
            heights = {round(y, 9) for y in band.get_paths()[0].vertices[:, 1]}
            assert heights == {round(y, 9) for pair in row.value_intervals for y in pair}
    assert [panel.get_title(loc="left") for panel in figure.axes] == [
        "linear.0 → linear.1",
        "linear.1 → linear.2",
        "linear.2 → output",
        "all sections at once",
    ]


def test_counts_are_dots_with_their_mean() -> None:
    figure = figures.required({"lib": [[133, 82], [80, 75]], "pca": [[167, None], [76, None]]}, ["a", "b"])
    (dots,) = named(figure, "counts:lib")[:1]
    assert dots.get_offsets()[:, 1].tolist() == [133, 80]
    assert "106.5" in words(figure)
    assert any("not" in text and "measured" in text for text in words(figure))


def test_shares_bars_profiles_and_spectra_are_the_data(graph: InteractionGraph, tmp_path: Path) -> None:
    shares: dict[str, Any] = {"lib": [0.1, 0.5, 0.95, 0.99], "pca": [0.2, 0.3, 0.4]}
    figure, comparison = figures.monosemanticity(shares), features.compare(shares)
    for name in shares:
        (line,), (steps,) = named(figure, f"density:{name}"), named(figure, f"cumulative:{name}")
        assert tuple(line.get_ydata()) == comparison.density[name]
        assert tuple(steps.get_ydata()) == comparison.cumulative[name]
    bars: Any = figures.auroc_bars({"x": {"lib": [0.9, 0.2]}}, "y", names={"x": ["cat", "dog"]}).axes[0]
    tops = [bar.get_y() + bar.get_height() for bar in bars.patches]
    assert tops == pytest.approx([0.9, 0.8])
    assert [label.get_text() for label in bars.get_xticklabels()] == ["cat 1", "dog 2"]
    analysed = small_runs.addition(tmp_path / "run").features(top=3).layers["attn_in.0"]
    (line,) = named(figures.position_profiles(analysed.features), "f3")
    assert line.get_ydata().tolist() == list(analysed.by_index()[3].positions.means)
    spectra = figures.eigenvalue_spectra({"lib": graph})
    for line, layer in zip(named(spectra, "spectrum:lib"), graph.layers, strict=True):
        values = layer.eigenvalues[1 if layer.constant else 0 :]
        values = values[values > 0].sort(descending=True).values
        np.testing.assert_allclose(line.get_ydata(), values / values[0], rtol=1e-12)


def test_nothing_global_is_touched(graph: InteractionGraph, tmp_path: Path) -> None:
    import sys

    before = json.dumps({k: str(v) for k, v in matplotlib.rcParams.items()})
    had_pyplot = "matplotlib.pyplot" in sys.modules
    figures.save(figures.interaction_graph(graph, top=3), tmp_path / "graph")
    assert json.dumps({k: str(v) for k, v in matplotlib.rcParams.items()}) == before
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_figures_are_saved_as_vector_and_pixels_alike_each_time(tmp_path: Path) -> None:
    figure = figures.required({"lib": [[3]]}, ["a"])
    files = figures.save(figure, tmp_path / "deep" / "counts")
    assert [file.name for file in files] == ["counts.svg", "counts.png"]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    first = files[0].read_bytes()
    again = figures.save(figures.required({"lib": [[3]]}, ["a"]), tmp_path / "other.v2", ["svg"])
    assert again == [tmp_path / "other.v2.svg"]
    assert again[0].read_bytes() == first
    assert b"<script" not in first
    assert figure.get_layout_engine() is not None  # as it was, for what is drawn later
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".tmp"]


def test_the_suffix_names_the_format(tmp_path: Path) -> None:
    figure = figures.required_shares({"a → b": (3, 40), "b → c": (0, 12)}, rule="Required: so many.")
    for suffix, start in {"pdf": b"%PDF", "SVG": b"<?xml", "png": b"\x89PNG"}.items():
        (file,) = figures.save(figure, tmp_path / f"counts.{suffix}")
        assert file == tmp_path / f"counts.{suffix.lower()}"
        assert file.read_bytes().startswith(start)
    with pytest.raises(InterbasisError, match=r"svg, png, pdf.* counts\.gif"):
        figures.save(figure, tmp_path / "counts.gif")
    with pytest.raises(InterbasisError, match="svg, png, pdf"):
        figures.save(figure, tmp_path / "x", formats=["gif"])  # type: ignore[list-item]


def test_what_one_run_requires_is_a_share_of_all_there_is() -> None:
    figure = figures.required_shares({"a → b": (3, 40), "b → c": (0, 12)})
    assert [bar.get_width() for bar in named(figure, "required")] == [7.5, 0]
    assert [bar.get_width() for bar in named(figure, "all")] == [100, 100]
    assert {"3 of 40", "0 of 12", "a → b"} <= set(words(figure))
    with pytest.raises(InterbasisError, match="at least one count"):
        figures.required_shares({})


def test_a_number_is_never_cut_in_two_and_unknown_letters_are_boxes() -> None:
    assert shortened("48% cos(15x) + 30% cos(18x)", 17) == "48% cos(15x) + …"
    assert shortened("a  plain\nlabel", 40) == "a plain label"
    assert plain("漢$") == r"□\$"


def test_the_variance_of_a_layer_norm_is_named(graph: InteractionGraph) -> None:
    first = graph.layers[0]
    apart = type(first)(first.name, first.transform, first.inverse, first.mean, first.eigenvalues, isolated=1)
    other = type(graph)([apart, *graph.layers[1:]], graph.edges, graph.config, graph.provenance)
    labels = {first.name: {1: "position (79%)", 2: "x"}}
    assert [node.label for node in select(other, top=2, labels=labels).columns[0]] == [
        "variance · position (79%)",
        "x",
    ]
    assert [node.label for node in select(other, top=2).columns[0]] == ["variance", ""]


def test_a_basis_has_its_colour_everywhere_and_others_have_what_is_left(curves: dict[Any, Any]) -> None:
    alone, among = looks(["pca"]), looks(["mine", "LIB", "pca", "yours"])
    assert alone["pca"] == among["pca"]
    assert among["LIB"]["color"] == COLOURS[0]
    assert among["pca"]["color"] == COLOURS[1]
    assert len({style["color"] for style in among.values()}) == 4
    figure = figures.required({"pca": [[3]], "mine": [[4]]}, ["a"])
    (dots,) = named(figure, "counts:pca")
    assert matplotlib.colors.to_hex(dots.get_facecolor()[0]).upper() == COLOURS[1]
    curve = figures.ablation_curves({"pca": curves["pca"]}).axes[0].lines[0]
    assert curve.get_color() == COLOURS[1]


def test_few_colours_make_small_files(graph: InteractionGraph, tmp_path: Path) -> None:
    figure = figures.interaction_graph(graph, top=5)
    (large,) = figures.save(figure, tmp_path / "all", ["png"])
    (small,) = figures.save(figure, tmp_path / "few", ["png"], colours=32)
    assert small.stat().st_size < large.stat().st_size / 2
    assert not list(tmp_path.glob("*.tmp"))
