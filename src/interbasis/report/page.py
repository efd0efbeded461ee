"""The page of a report, assembled from its parts."""

from collections.abc import Sequence
from importlib.metadata import version

from interbasis.report import tables
from interbasis.report.facts import Facts
from interbasis.report.html import element, heading, paragraph, picture, text
from interbasis.report.standards import Statement, statements
from interbasis.report.together import statements_together

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""A browser that is asked to fetch anything refuses."""


def page(runs: Sequence[Facts], pictures: Sequence[tuple[str, str, float]], css: str, date: str) -> str:
    """The HTML; ``pictures`` are (title, data address, inches across)."""
    title = ", ".join(f"{run.summary['basis'].upper()} of {run.model}" for run in runs[:3])
    title += f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    many = f"{len(runs)} runs" if len(runs) > 1 else "one run"
    body = [
        element(
            "header",
            heading(1, title)
            + paragraph(f"Report on {many}, written by interbasis {version('interbasis')} on {date}."),
        ),
        _part("What was run", tables.what_was_run(runs)),
        _part("What this evidence allows", _boxes(runs)),
        _part("Numbers", _numbers(runs)),
        _part("Figures", "".join(picture(*one) for one in pictures)) if pictures else "",
        _part("Make it again", _again(runs)),
    ]
    head = (
        '<meta charset="utf-8">'
        + f'<meta http-equiv="Content-Security-Policy" content="{text(POLICY)}">'
        + '<meta name="viewport" content="width=device-width, initial-scale=1">'
        + '<meta name="color-scheme" content="light dark">'
        + element("title", text(title))
        + element("style", css)
    )
    inside = element("head", head) + "\n" + element("body", element("main", "\n".join(body)))
    return "<!doctype html>\n" + element("html", inside, lang="en") + "\n"


def _numbers(runs: Sequence[Facts]) -> str:
    layers = heading(3, "Node layers") + tables.node_layers(runs)
    edges = heading(3, "Interactions Ê") + tables.sections(runs)
    return layers + edges + tables.controls(runs) + tables.modules(runs) + tables.monosemantic(runs)


def _part(title: str, content: str) -> str:
    return element("section", heading(2, title) + content)


def _boxes(runs: Sequence[Facts]) -> str:
    parts = []
    if len(runs) > 1:
        parts.append(_box("The runs together", statements_together(runs)))
    parts += [_box(run.name if len(runs) > 1 else "", statements(run)) for run in runs]
    return "".join(parts)


def _box(title: str, found: Sequence[Statement]) -> str:
    if not found:
        return ""
    columns = _column("Allowed to say", "yes", [s for s in found if s.allowed])
    columns += _column("Not allowed to say", "no", [s for s in found if not s.allowed])
    inside = (heading(3, title) if title else "") + element("div", columns, class_="pair")
    return element("div", inside, class_="standards")


def _column(title: str, kind: str, found: Sequence[Statement]) -> str:
    items = "".join(
        element("li", element("q", text(s.text)) + " " + element("span", text(s.because), class_="because"))
        for s in found
    )
    return element(
        "div", heading(4, title) + (element("ul", items) if items else paragraph("Nothing.")), class_=kind
    )


def _again(runs: Sequence[Facts]) -> str:
    named = [run for run in runs if run.graph.provenance.request]
    if not named:
        return paragraph("The runs were built from Python and do not hold a request that builds them again.")
    lines = "\n".join(f"interbasis build --config {run.folder} --out NEW_FOLDER" for run in named)
    return paragraph("Builds the same graph again, bit for bit:") + element("pre", text(lines))
