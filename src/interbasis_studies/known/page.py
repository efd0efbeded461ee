"""The scoreboard as one page: pictures of scores against every axis, tables, and what follows from them."""

import base64
from io import BytesIO
from math import isnan
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from interbasis.base.files import write_text_atomically
from interbasis.show.figures.style import GREY, INK, STYLE, looks, note, panel_grid, styled
from interbasis.show.html import document, element, heading, paragraph, picture
from interbasis.show.report.page import stylesheet
from interbasis.show.tables import ResultTable, markdown_table
from interbasis_studies.known.conclusions import axis_conclusions, judged_by, row_conclusion
from interbasis_studies.known.planted import PlantedSpec
from interbasis_studies.known.records import TITLES, Estimate, RecoveryScores, Scoreboard
from interbasis_studies.known.scoreboard_axes import QUICK_SAMPLES

PICTURED = {
    "cosine": "best cosine",
    "features": "features",
    "edge_precision": "edges",
    "modules": "modules",
    "effects": "effects",
}
TABULATED = (
    "cosine",
    "correlation",
    "modules",
    "modules_counted",
    "features",
    "matched",
    "edge_precision",
    "false_mass",
    "effects",
)
OWN_COLOURS = {"ceiling": INK, "unwhitened": GREY}
"""Of the series that the palette has no colour left for."""
FILE, MARKDOWN = "scoreboard.html", "scoreboard.md"
DPI = 130


def write_page(board: Scoreboard, out: Path) -> Path:
    """Write scoreboard.html, which holds its pictures, into a folder.

    Args:
        board: A scoreboard.
        out: The folder.

    Returns:
        The file.
    """
    path = out / FILE
    write_text_atomically(path, page(board))
    return path


def write_markdown(board: Scoreboard, out: Path) -> Path:
    """Write the tables of the page as scoreboard.md into a folder.

    Args:
        board: A scoreboard.
        out: The folder.

    Returns:
        The file.
    """
    path = out / MARKDOWN
    write_text_atomically(path, markdown(board))
    return path


def markdown(board: Scoreboard) -> str:
    """Tables and sentences without pictures."""
    lines = ["# Scoreboard", "", _words(board), ""]
    for axis, values in board.axes.items():
        lines += [f"## {axis.capitalize()}", "", *axis_conclusions(board, axis), ""]
        for name in TABULATED:
            if _defined(board, axis, name):
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
    title = "Scoreboard: which basis finds what is there?"
    parts = [_breakdowns(board), *(_axis(board, axis) for axis in board.axes)]
    return document(title, stylesheet(), _about(board), parts)


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


def _about(board: Scoreboard) -> str:
    fields = RecoveryScores.model_fields
    meanings = [(name.replace("_", " "), field.description or "") for name, field in fields.items()]
    head = ("score", "what it is")
    return paragraph(_words(board)) + ResultTable.from_cells("", head, meanings, text=head).to_html()


def _breakdowns(board: Scoreboard) -> str:
    rows = [
        [TITLES[basis], *(board.breakdown(axis, basis, judged_by(board, axis)) or "–" for axis in board.axes)]
        for basis in board.bases
    ]
    caption = (
        "The first value of every axis at which the score is below 0.5: that of modules, of edges for the "
        "planted transformer, which has none, of matched features for modular addition."
    )
    table = ResultTable.from_cells("", ["", *board.axes], rows, caption)
    return element("section", heading(2, "Where each basis breaks down") + table.to_html())


def _axis(board: Scoreboard, axis: str) -> str:
    values = board.axes[axis]
    content = heading(2, axis.capitalize())
    content += "".join(paragraph(sentence) for sentence in axis_conclusions(board, axis))
    content += picture(f"Scores against {axis}", _data_address(draw_axis(board, axis)), 7.0)
    for name in TABULATED:
        if _defined(board, axis, name):
            caption = f"{name.replace('_', ' ')}: mean (95 % interval)"
            content += ResultTable.from_cells(
                "", [axis, *values], _rows(board, axis, name), caption
            ).to_html()
    conclusions = [(value, row_conclusion(board, axis, value)) for value in values]
    head = (axis, "conclusion")
    return element("section", content + ResultTable.from_cells("", head, conclusions, text=head).to_html())


def _defined(board: Scoreboard, axis: str, name: str) -> bool:
    """Whether any basis has this score on this axis."""
    estimates = [
        board.estimate(axis, value, basis, name) for value in board.axes[axis] for basis in board.bases
    ]
    return any(estimate is not None and not isnan(estimate.mean) for estimate in estimates)


def cell(estimate: Estimate | None) -> str:
    """A mean with its interval, or a dash."""
    if estimate is None or isnan(estimate.mean):
        return "–"
    if isnan(estimate.low):
        return f"{estimate.mean:.2f}"
    return f"{estimate.mean:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


@styled
def draw_axis(board: Scoreboard, axis: str) -> Figure:
    """A panel per score that is defined: features, edges, modules and effects against one axis."""
    values, bases = board.axes[axis], board.bases
    pictured = {name: title for name, title in PICTURED.items() if _defined(board, axis, name)}
    figure, panels = panel_grid(len(pictured), across=2, height=2.1)
    styles = looks(bases)
    for panel, (name, title) in zip(panels, pictured.items(), strict=True):
        for number, basis in enumerate(bases):
            points = [(x, board.estimate(axis, value, basis, name)) for x, value in enumerate(values)]
            known = [(x, e) for x, e in points if e is not None and not isnan(e.mean)]
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
