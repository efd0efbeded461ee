"""What the commands share: parameters, and how results are printed."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console, RenderableType

Run = Annotated[Path, Parameter(help="Folder of a run.")]
Data = Annotated[
    str | None, Parameter(help="Data to evaluate on; the test set of what the run was built on without it.")
]
AsJson = Annotated[
    bool, Parameter(name="--json", help="Print the result as JSON.", negative="", show_default=False)
]


def show(
    result: dict[str, Any], as_json: bool, tables: Callable[[dict[str, Any]], Iterable[RenderableType]]
) -> None:
    """A result as JSON for machines or as tables for people."""
    if as_json:
        print(json.dumps(result, indent=2))
        return
    console = Console()
    for table in tables(result):
        console.print(table)
