"""The scoreboard as one page: pictures of scores against every axis, tables, and what follows from them."""

import base64
from io import BytesIO
from math import isnan
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from interbasis.base.files import write_text_atomically
from interbasis.show.figures.style import GREY, INK, STYLE, looks, note, panel_grid, styled
from interbasis.show.html import render
from interbasis.show.report.page import stylesheet
from interbasis.show.tables import ResultTable, markdown_table
from interbasis_studies.known.conclusions import axis_conclusions, judged_by, row_conclusion
from interbasis_studies.known.planted import PlantedSpec
from interbasis_studies.known.records import TITLES, Estimate, RecoveryScores, Scoreboard
from interbasis_studies.known.scoreboard_axes import QUICK_SAMPLES

PICTURED = {
    "cosine": "best cosine", "features": "features", "edge_precision": "edges", "modules": "modules",
    "effects": "effects",
}  # fmt: skip
TABULATED = (
    "cosine", "correlation", "modules", "modules_counted", "features", "matched", "edge_precision",
    "false_mass", "effects",
)  # fmt: skip
OWN_COLOURS = {"ceiling": INK, "unwhitened": GREY}
"""Colours of the series that the palette has no colour left for."""
FILE, MARKDOWN = "scoreboard.html", "scoreboard.md"
DPI = 130


def write_pages(board: Scoreboard, out: Path) -> Path:
    """Write scoreboard.html, which holds its pictures, and its tables as scoreboard.md into a folder.

    Args:
        board: A scoreboard.
        out: The folder.

    Returns:
        The HTML file.
    """
    write_text_atomically(out / MARKDOWN, markdown(board))
    write_text_atomically(out / FILE, page(board))
    return out / FILE


def markdown(board: Scoreboard) -> str:
    """Tables and sentences without pictures."""
    lines = ["# Scoreboard", "", _words(board), ""]
    for axis, values in board.axes.items():
        lines += [f"## {axis.capitalize()}", "", *axis_conclusions(board, axis), ""]
        for name in TABULATED:
            if board.is_defined(axis, name):
                head = [name.replace("_", " "), *values]
                lines += [markdown_table(head, _rows(board, axis, name)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(board: Scoreboard, axis: str, name: str) -> list[list[str]]:
    return [
        [TITLES[basis], *(cell(board.estimate(axis, value, basis, name)) for value in board.axes[axis])]
        for basis in board.bases
    ]


def page(board: Scoreboard) -> str:
    """The HTML; the same scoreboard gives the same text."""
    fields, head = RecoveryScores.model_fields, ("score", "what it is")
    meanings = [(name.replace("_", " "), field.description or "") for name, field in fields.items()]
    rows = [
        [TITLES[basis], *(board.breakdown(axis, basis, judged_by(board, axis)) or "–" for axis in board.axes)]
        for basis in board.bases
    ]
    caption = (
        "The first value of every axis at which the score is below 0.5: that of modules, of edges for the "
        "planted transformer, which has none, of matched features for modular addition."
    )
    return render(
        (Path(__file__).parent / "scoreboard.html").read_text(encoding="utf-8"),
        title="Scoreboard: which basis finds what is there?",
        css=stylesheet(),
        words=_words(board),
        scores=ResultTable.from_cells("", head, meanings, text=head),
        breakdowns=ResultTable.from_cells("", ["", *board.axes], rows, caption),
        axes=[
            (axis, axis_conclusions(board, axis), _data_address(draw_axis(board, axis)), _tables(board, axis))
            for axis in board.axes
        ],
    )


def _words(board: Scoreboard) -> str:
    spec = PlantedSpec()
    samples = QUICK_SAMPLES if board.request.quick else spec.samples
    return (
        f"Residual MLPs with known parts: {spec.parts} parts of {spec.size} features, {spec.depth} residual "
        f"sections, {samples:,} samples, mixed by a rotation in every layer, except where an axis varies one "
        f"of these. {board.request.seeds} networks per setting; intervals are "
        "95 % over them. 1 is everything that is there; the best rotation knows the parts and is the "
        "ceiling, the random rotation is the floor."
    )


def _tables(board: Scoreboard, axis: str) -> list[ResultTable]:
    values, head = board.axes[axis], (axis, "conclusion")
    tables = [
        ResultTable.from_cells(
            "", [axis, *values], _rows(board, axis, name), f"{name.replace('_', ' ')}: mean (95 % interval)"
        )
        for name in TABULATED
        if board.is_defined(axis, name)
    ]
    conclusions = [(value, row_conclusion(board, axis, value)) for value in values]
    return [*tables, ResultTable.from_cells("", head, conclusions, text=head)]


def cell(estimate: Estimate | None) -> str:
    """A mean with its interval, or a dash."""
    if estimate is None:
        return "–"
    if isnan(estimate.low):
        return f"{estimate.mean:.2f}"
    return f"{estimate.mean:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


@styled
def draw_axis(board: Scoreboard, axis: str) -> Figure:
    """A panel per score that is defined: features, edges, modules and effects against one axis."""
    values, bases = board.axes[axis], board.bases
    pictured = {name: title for name, title in PICTURED.items() if board.is_defined(axis, name)}
    figure, panels = panel_grid(len(pictured), across=2, height=2.1)
    styles = looks(bases)
    for panel, (name, title) in zip(panels, pictured.items(), strict=True):
        for number, basis in enumerate(bases):
            points = [(x, board.estimate(axis, value, basis, name)) for x, value in enumerate(values)]
            known = [(x, e) for x, e in points if e]
            if not known:
                continue
            shift = 0.03 * (number - len(bases) / 2)
            means = [e.mean for _, e in known]
            errors = [0.0 if isnan(e.high) else e.high - e.mean for _, e in known]
            at = [x + shift for x, _ in known]
            look = styles[basis] | ({"color": OWN_COLOURS[basis]} if basis in OWN_COLOURS else {})
            panel.errorbar(at, means, errors, elinewidth=0.6, capsize=0, label=TITLES[basis], **look)
        panel.set_title(title)
        panel.set_xticks(range(len(values)), values)
        panel.set_ylim(-0.1, 1.08)
        panel.axhline(0.5, color="#D9D9D9", linewidth=0.8, zorder=0)
        panel.set_xlabel(axis)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5)
    note(figure, "Means over seeds with 95 % intervals; 1 is best in every panel.")
    return figure


def _data_address(figure: Figure) -> str:
    buffer = BytesIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
