"""The page of a report, assembled from its parts."""

from collections.abc import Sequence
from dataclasses import dataclass

from interbasis.base.version import VERSION
from interbasis.show.report import tables
from interbasis.show.report.claims import Claim, claims
from interbasis.show.report.comparison import claims_about_all
from interbasis.show.report.findings import findings
from interbasis.show.report.html import document, element, heading, paragraph, picture, text
from interbasis.show.report.record import ReportedRun


@dataclass(frozen=True)
class Drawn:
    """A figure as the page needs it."""

    title: str
    data: str
    """Address with the image inside."""
    inches: float
    opens: bool
    """Whether it stands beside what was found: the graph of a run, or its first part."""


def page(runs: Sequence[ReportedRun], figures: Sequence[Drawn], css: str, date: str) -> str:
    """The HTML: what was found, its picture, what may be said, the numbers, and where they come from."""
    title = ", ".join(f"{run.summary.basis.upper()} of {run.model}" for run in runs[:3])
    title += f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    many = f"{len(runs)} runs" if len(runs) > 1 else "one run"
    written = f"Report on {many}, written by interbasis {VERSION} on {date}."
    first, others = ([one for one in figures if one.opens is opens] for opens in (True, False))
    body = [
        _part("What was found", _found(runs) + _pictures(first)),
        _part("What this evidence allows", _boxes(runs)),
        _part("Numbers", _numbers(runs)),
        _part("Figures", _pictures(others)) if others else "",
        _part("Provenance", tables.what_was_run(runs) + heading(3, "Build it again") + _commands(runs)),
    ]
    return document(title, css, paragraph(written), body)


def _found(runs: Sequence[ReportedRun]) -> str:
    """Three sentences a run."""
    parts = []
    for run in runs:
        sentences = element("ul", "".join(element("li", text(one)) for one in findings(run)), class_="found")
        parts.append((heading(3, run.name) if len(runs) > 1 else "") + sentences)
    return "".join(parts)


def _pictures(figures: Sequence[Drawn]) -> str:
    return "".join(picture(one.title, one.data, one.inches) for one in figures)


def _numbers(runs: Sequence[ReportedRun]) -> str:
    layers = heading(3, "Node layers") + tables.node_layers(runs)
    edges = heading(3, "Interactions Ê") + tables.sections(runs)
    return layers + edges + tables.controls(runs) + tables.modules(runs) + tables.monosemantic(runs)


def _part(title: str, content: str) -> str:
    return element("section", heading(2, title) + content)


def _boxes(runs: Sequence[ReportedRun]) -> str:
    parts = []
    if len(runs) > 1:
        parts.append(_box("The runs together", claims_about_all(runs)))
    parts += [_box(run.name if len(runs) > 1 else "", claims(run)) for run in runs]
    return "".join(parts)


def _box(title: str, listed: Sequence[Claim]) -> str:
    if not listed:
        return ""
    columns = _column("You may say", "yes", [claim for claim in listed if claim.allowed])
    columns += _column("You may not say", "no", [claim for claim in listed if not claim.allowed])
    inside = (heading(3, title) if title else "") + element("div", columns, class_="pair")
    return element("div", inside, class_="claims")


def _column(title: str, kind: str, listed: Sequence[Claim]) -> str:
    items = "".join(
        element(
            "li",
            element("q", text(claim.text)) + " " + element("span", text(claim.because), class_="because"),
        )
        for claim in listed
    )
    return element(
        "div", heading(4, title) + (element("ul", items) if items else paragraph("Nothing.")), class_=kind
    )


def _commands(runs: Sequence[ReportedRun]) -> str:
    named = [run for run in runs if run.graph.provenance.request]
    if not named:
        return paragraph("The runs were built from Python and do not hold a request that builds them again.")
    lines = "\n".join(f"interbasis build --config {run.folder} --out NEW_FOLDER" for run in named)
    return paragraph("Builds the same graph again, bit for bit:") + element("pre", text(lines))
