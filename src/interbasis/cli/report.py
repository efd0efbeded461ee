"""`interbasis report`: a page to attach to a paper or to show to a colleague."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.base.records import Record
from interbasis.cli import common


class ReportResult(Record):
    """Files that were written."""

    page: Path
    bytes: int
    figures: tuple[Path, ...]


def report(
    *runs: Annotated[Path, Parameter(help="Folders of runs, side by side in the report, or of differences.")],
    out: Annotated[Path, Parameter(help="Folder for report.html and figures/.")],
    as_json: common.AsJson = False,
) -> None:
    """Write a report: the numbers, the figures, and what may be claimed from them.

    Uses what ablate, curves, controls, modules, features and diff have stored in the runs.

    Example: interbasis report runs/lib runs/pca --out report
    """
    from interbasis.base.progress import progress_bar
    from interbasis.show.report import write_report

    with progress_bar() as advance:
        page = write_report(runs, out, advance)
    figures = tuple(sorted((out / "figures").glob("*")))
    result = ReportResult(page=page, bytes=page.stat().st_size, figures=figures)
    line = f"{page}  ({result.bytes:,} bytes, {len(figures)} files of figures beside it)"
    common.show(result, as_json, lambda _: [line])
