"""What the commands share: parameters, and how results are printed."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter
from rich.console import RenderableType

from interbasis.runtime.messages import clear_line
from interbasis.runtime.printable import printable
from interbasis.runtime.records import Record

R = TypeVar("R", bound=Record)

Flat = Parameter(name="*", negative_iterable=(), negative_none=())
"""A request whose fields are the options of a command."""
Run = Annotated[Path, Parameter(help="Folder of a run.")]
ModelName = Annotated[
    str | None, Parameter(name="--model", help="The model by name; default: the one that the run names.")
]
Device = Annotated[
    str | None,
    Parameter(name="--device", help="Device to compute on: cpu, cuda, cuda:1 or mps; default: cpu."),
]
Memory = Annotated[
    str | None,
    Parameter(name="--memory", help="Maximum memory to use, such as 8GB; default: no limit."),
]
AsJson = Annotated[
    bool, Parameter(name="--json", help="Print the result as JSON.", negative="", show_default=False)
]


def show(
    result: R, as_json: bool, tables: Callable[[R], Iterable[RenderableType]], run: Path | None = None
) -> None:
    """A result as JSON for machines, with the run it belongs to, or as tables for people."""
    from interbasis.terminal.tables import print_parts

    if as_json:
        values = json.loads(result.to_json())
        print_text(json.dumps(values if run is None else values | {"run": str(run)}, indent=2))
        return
    print_parts(tables(result))


def print_text(text: str) -> None:
    """On standard output, with control characters escaped."""
    clear_line()
    print(printable(text), flush=True)
