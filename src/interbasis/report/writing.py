"""Writing a report: the page with its figures inside, and the figures once more as files of their own."""

from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from interbasis.figures import save
from interbasis.report.figures import figures_of
from interbasis.report.page import page
from interbasis.report.record import read_runs
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.files import check_writable, write_text_atomically
from interbasis.runtime.progress import Progress, silent

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
    folder = Path(out)
    check_writable(folder)
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InterbasisError(f"could not make the folder {folder} ({error.strerror})") from error
    shown = []
    for number, (name, title, figure) in enumerate(figures_of(reported)):
        vector, _ = save(figure, folder / "figures" / name)
        data = "data:image/svg+xml;base64," + b64encode(vector.read_bytes()).decode("ascii")
        shown.append((title, data, figure.get_figwidth()))
        progress("figures", number + 1, number + 1)
    css = files("interbasis.report").joinpath("report.css").read_text(encoding="utf-8")
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    write_text_atomically(folder / PAGE, page(reported, shown, css, date))
    return folder / PAGE
