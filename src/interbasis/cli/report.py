"""`interbasis report`: a page to attach to a paper or to show to a colleague."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from interbasis.cli import common


def report(
    *runs: Annotated[Path, Parameter(help="Folders of runs, side by side in the report.")],
    out: Annotated[Path, Parameter(help="Folder for report.html and figures/.")],
    as_json: common.AsJson = False,
) -> None:
    """Write a report: what was run, the numbers, the figures, and what they allow one to say.

    Uses what ablate, curves, controls, modules and features have stored in the runs.
    Example: interbasis report runs/lib runs/pca --out report
    """
    from interbasis.report import write_report
    from interbasis.runtime.progress import progress_bar

    with progress_bar() as advance:
        page = write_report(runs, out, advance)
    figures = sorted(str(file) for file in (out / "figures").iterdir())
    common.show({"page": str(page), "bytes": page.stat().st_size, "figures": figures}, as_json, _lines)


def _lines(result: dict[str, Any]) -> list[str]:
    return [
        f"{result['page']}  ({result['bytes']:,} bytes, {len(result['figures'])} files of figures beside it)"
    ]
