"""The page of a report with its figures inside, and the figures once more as files of their own."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib.figure import Figure

from interbasis.analysis.differences.records import Difference
from interbasis.analysis.differences.store import is_difference, load_difference
from interbasis.analysis.workspace import Workspace
from interbasis.base.errors import InterbasisError
from interbasis.base.files import check_writable, make_folder, write_text_atomically
from interbasis.base.progress import Progress, silent
from interbasis.base.version import VERSION
from interbasis.dictionaries.graph import is_dictionary_graph
from interbasis.show.difference_sentences import difference_claims, difference_findings
from interbasis.show.difference_tables import difference_tables
from interbasis.show.figures.saving import Format, known_formats, save
from interbasis.show.html import HtmlPage, render
from interbasis.show.report import tables
from interbasis.show.report.claims import claims, claims_about_all
from interbasis.show.report.figures import KINDS, heat_maps, is_opening, report_figures
from interbasis.show.report.findings import findings
from interbasis.show.report.record import Reportable, ReportedRun, read_runs
from interbasis.show.tables import ResultTable

PAGE = "report.html"
NEEDED = dict.fromkeys(KINDS, "graphs have such figures if they have edges") | {
    "required": "call run.ablate() first",
    "curves": "call run.curves() first",
    **dict.fromkeys(
        ("monosemanticity", "classes", "positions"), "run.features() finds it where data have it"
    ),
}
"""Advice where a figure cannot be drawn, by kind."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class EmbeddedFigure:
    """A figure as the page needs it."""

    title: str
    data: str
    """Address with the image inside."""
    inches: float
    opening: bool
    """Whether it stands beside what was found: the graph of a run, or its first part."""


def write_report(
    runs: Reportable | Sequence[Reportable], out: str | Path, progress: Progress = silent
) -> Path:
    """Write OUT/report.html about runs, and OUT/figures/*.svg and *.png.

    The page is one file that requires nothing else: no scripts, no fonts, no requests. What it allows one to
    say depends on which of ablate, curves, controls, modules and features were run.

    Args:
        runs: Folders of runs, with the differences stored in them, or of differences, or open runs; one of
            them, or several side by side.
        out: Folder to write to.
        progress: Told of every figure.

    Returns:
        The page's path.

    Raises:
        InterbasisError: A run cannot be read, or the folder cannot be written to.
    """
    listed = _listed(runs)
    between = [run for run in listed if not isinstance(run, Workspace) and is_dictionary_graph(run)]
    if between:
        from interbasis.show.dictionaries.report import write_dictionary_report

        if len(listed) > 1:
            raise InterbasisError(
                "a report is about one graph between dictionaries; leave out the other runs, or use "
                "interbasis compare"
            )
        return write_dictionary_report(Path(between[0]), Path(out))
    reported, differences = _read(listed)
    folder = _writable_folder(out, "figures").parent
    shown = []
    made = _save_figures(reported, differences, folder / "figures", ("svg", "png"), progress)
    for title, figure, (vector, _) in made:
        data = "data:image/svg+xml;base64," + b64encode(vector.read_bytes()).decode("ascii")
        shown.append(EmbeddedFigure(title, data, figure.get_figwidth(), is_opening(vector.stem)))
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    write_text_atomically(folder / PAGE, page(reported, shown, stylesheet(), date, differences))
    return folder / PAGE


def report_page(runs: Reportable | Sequence[Reportable]) -> HtmlPage:
    """The page of a report, for a notebook."""
    with TemporaryDirectory() as folder:
        page = write_report(runs, folder)
        return HtmlPage("report", page.read_text(encoding="utf-8"))


def draw_figure(runs: Reportable | Sequence[Reportable], kind: str, part: int = 0) -> Figure:
    """Draw one figure of a report.

    Args:
        runs: Folders of runs, or open runs.
        kind: A kind of figure, see `interbasis.show.report.figures.KINDS`.
        part: Which of them, where there are several.

    Returns:
        The figure.

    Raises:
        InterbasisError: The kind is unknown, or the runs do not hold what it shows.
    """
    if kind not in KINDS:
        raise InterbasisError(f"expected a figure of {', '.join(KINDS)}, received {kind!r}")
    drawn = report_figures(read_runs(runs), [kind])
    figure = next((figure for number, (_, _, figure) in enumerate(drawn) if number == part), None)
    if figure is None:
        raise InterbasisError(
            f"there is no figure {part} of {kind}: the run has fewer, or lacks the result that it shows; "
            f"{NEEDED[kind]}"
        )
    return figure


def write_figures(
    runs: Reportable | Sequence[Reportable],
    out: str | Path,
    formats: Sequence[Format] = ("svg", "pdf"),
    progress: Progress = silent,
) -> list[Path]:
    """Write every figure of a report.

    Args:
        runs: Folders of runs or of differences, or open runs; comparable ones share figures.
        out: Folder to write to.
        formats: svg, png or pdf; text in PDF files stays text.
        progress: Told of every figure.

    Returns:
        The files.

    Raises:
        InterbasisError: A format is unknown, a run cannot be read, or the folder cannot be written to.
    """
    known_formats(formats)
    written = _save_figures(*_read(_listed(runs)), _writable_folder(out), formats, progress)
    return [file for _, _, paths in written for file in paths]


def _listed(runs: Reportable | Sequence[Reportable]) -> list[Reportable]:
    return [runs] if isinstance(runs, str | Path | Workspace) else list(runs)


def _read(listed: Sequence[Reportable]) -> tuple[list[ReportedRun], dict[str, Difference]]:
    """Runs, and differences by name: those in folders of their own, and those stored in the runs."""
    alone = [Path(run) for run in listed if not isinstance(run, Workspace) and is_difference(Path(run))]
    others = [run for run in listed if isinstance(run, Workspace) or Path(run) not in alone]
    runs = read_runs(others) if others or not alone else []
    found = {str(folder): load_difference(folder).record for folder in alone}
    for run in runs:
        found |= {f"{run.name}: {name}": difference for name, difference in run.record.differences.items()}
    return runs, found


def _writable_folder(out: str | Path, inside: str = "") -> Path:
    check_writable(Path(out))
    folder = Path(out) / inside
    make_folder(folder)
    return folder


def _save_figures(
    runs: Sequence[ReportedRun],
    differences: Mapping[str, Difference],
    folder: Path,
    formats: Sequence[Format],
    progress: Progress,
) -> Iterator[tuple[str, Figure, list[Path]]]:
    """(title, figure, its files), one figure after another."""
    for number, (name, title, figure) in enumerate(
        chain(report_figures(runs), heat_maps(list(differences.values())))
    ):
        yield title, figure, save(figure, folder / name, formats)
        progress("figures", number + 1, number + 1)


def stylesheet() -> str:
    return (HERE / "report.css").read_text(encoding="utf-8")


def page(
    runs: Sequence[ReportedRun],
    figures: Sequence[EmbeddedFigure],
    css: str,
    date: str,
    differences: Mapping[str, Difference] | None = None,
) -> str:
    """The HTML: what was found, its picture, what may be said, the numbers, and where they come from."""
    title = ", ".join(f"{run.summary.basis.upper()} of {run.model}" for run in runs[:3])
    differences = differences or {}
    return render(
        (HERE / "report.html").read_text(encoding="utf-8"),
        title=title + (f" and {len(runs) - 3} more" if len(runs) > 3 else "") or "Differences between models",
        css=css,
        version=VERSION,
        date=date,
        runs=runs,
        figures=figures,
        findings=findings,
        boxes=[
            ("The runs together", claims_about_all(runs)),
            *((run.name if len(runs) > 1 else "", claims(run)) for run in runs),
        ],
        differences=[
            {
                "title": f"{difference.first.name} / {difference.second.name}",
                "findings": list(difference_findings(difference)),
                "claims": difference_claims(difference),
                "tables": [part for part in difference_tables(difference) if isinstance(part, ResultTable)],
            }
            for difference in differences.values()
        ],
        layers=tables.layer_table(runs) if runs else None,
        sections=tables.section_table(runs) if runs else None,
        tables=[*map(tables.control_table, runs), tables.module_table(runs), tables.monosemantic_table(runs)],
        provenance=tables.provenance(runs) if runs else None,
        commands=[
            f"interbasis build --config {run.folder} --out NEW_FOLDER"
            for run in runs
            if run.folder and run.graph.provenance.request
        ],
    )
