"""`interbasis export`: a run in other forms."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common


def export(
    run: common.Run,
    other: Annotated[Path | None, Parameter(help="Folder of a second run, side by side in the page.")] = None,
    /,
    *,
    html: Annotated[Path | None, Parameter(help="One HTML file that shows the graph from disk.")] = None,
    as_json: common.AsJson = False,
) -> None:
    """Write a run in another form.

    Example: interbasis export runs/lib --html lib.html
    """
    from interbasis.errors import InterbasisError

    if html is None:
        raise InterbasisError("nothing to export was named; add --html FILE")
    from interbasis.viewer import write_page

    file = write_page([run] if other is None else [run, other], html)
    common.show({"html": str(file), "bytes": file.stat().st_size}, as_json, _lines)


def _lines(result: dict[str, object]) -> list[str]:
    return [f"{result['html']}  ({result['bytes']:,} bytes)"]
