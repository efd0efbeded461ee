"""Writing a report: the page with its figures inside, and the figures once more as files of their own."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from matplotlib.figure import Figure

from interbasis.base.files import check_writable, make_folder, write_text_atomically
from interbasis.base.progress import Progress, silent
from interbasis.show.figures.saving import Format, known_formats, save
from interbasis.show.report.figures import figures_of, is_opening
from interbasis.show.report.page import Drawn, page
from interbasis.show.report.record import ReportedRun, read_runs

PAGE = "report.html"


def write_report(runs: Sequence[str | Path], out: str | Path, progress: Progress = silent) -> Path:
    """Write OUT/report.html about runs on disk, and OUT/figures/*.svg and *.png.

    The page is one file that requires nothing else: no scripts, no fonts, no requests. What it allows one to
    say depends on which of ablate, curves, controls, modules and features were run.

    Args:
        runs: Folders of the runs.
        out: Folder to write to.
        progress: Told of every figure.

    Returns:
        The page's path.

    Raises:
        InterbasisError: A run cannot be read, or the folder cannot be written to.
    """
    reported = read_runs(runs)
    folder = _folder(out, "figures").parent
    shown = []
    for title, figure, (vector, _) in _written(reported, folder / "figures", ("svg", "png"), progress):
        data = "data:image/svg+xml;base64," + b64encode(vector.read_bytes()).decode("ascii")
        shown.append(Drawn(title, data, figure.get_figwidth(), opens=is_opening(vector.stem)))
    css = files("interbasis.show.report").joinpath("report.css").read_text(encoding="utf-8")
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    write_text_atomically(folder / PAGE, page(reported, shown, css, date))
    return folder / PAGE


def write_figures(
    runs: Sequence[str | Path],
    out: str | Path,
    formats: Sequence[Format] = ("svg", "pdf"),
    progress: Progress = silent,
) -> list[Path]:
    """Write every figure of a report on runs on disk.

    Args:
        runs: Folders of the runs; comparable runs share figures.
        out: Folder to write to.
        formats: svg, png or pdf; text in PDF files stays text.
        progress: Told of every figure.

    Returns:
        The files.

    Raises:
        InterbasisError: A format is unknown, a run cannot be read, or the folder cannot be written to.
    """
    known_formats(formats)
    reported = read_runs(runs)
    folder = _folder(out)
    return [file for *_, made in _written(reported, folder, formats, progress) for file in made]


def _folder(out: str | Path, inside: str = "") -> Path:
    """A folder that is there and may be written to."""
    check_writable(Path(out))
    folder = Path(out) / inside
    make_folder(folder)
    return folder


def _written(
    runs: Sequence[ReportedRun], folder: Path, formats: Sequence[Format], progress: Progress
) -> Iterator[tuple[str, Figure, list[Path]]]:
    """(title, figure, its files), one figure after another."""
    for number, (name, title, figure) in enumerate(figures_of(runs)):
        yield title, figure, save(figure, folder / name, formats)
        progress("figures", number + 1, number + 1)
