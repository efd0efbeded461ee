"""`interbasis figures`: every figure of a run as a file."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.base.records import Record
from interbasis.cli import common


class FiguresResult(Record):
    """Files that were written."""

    files: tuple[Path, ...]


def figures(
    *runs: Annotated[Path, Parameter(help="Folders of runs; comparable runs share figures.")],
    out: Annotated[Path, Parameter(help="Folder for the figures.")],
    format: Annotated[str, Parameter(help="Comma-separated formats: svg, pdf, png.")] = "svg,pdf",
    as_json: common.AsJson = False,
) -> None:
    """Write every figure of a run as SVG, PDF or PNG.

    These are the figures of the report, as far as the run has stored the results that they show.

    Example: interbasis figures runs/lib --format pdf --out figures
    """
    from interbasis.base.progress import progress_bar
    from interbasis.show.figures.saving import known_formats
    from interbasis.show.report import write_figures

    formats = known_formats([name.strip() for name in format.split(",")])
    with progress_bar() as advance:
        files = write_figures(runs, out, formats, advance)
    lines = [f"{file}  ({file.stat().st_size:,} bytes)" for file in files]
    common.show(FiguresResult(files=tuple(files)), as_json, lambda _: lines)
