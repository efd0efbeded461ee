"""Parameters that commands share, and printing of results."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter
from rich.console import RenderableType

from interbasis.base.messages import clear_line, printable
from interbasis.base.records import Record

if TYPE_CHECKING:
    from interbasis.run.run import Run as OpenRun

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
    str | None, Parameter(name="--memory", help="Maximum memory to use, such as 8GB; default: no limit.")
]


def flag(text: str, name: str | None = None) -> Parameter:
    """Option without a value; ``text`` is its line of help."""
    return Parameter(name=name, help=text, negative="", show_default=False)


Trust = Annotated[
    bool,
    flag(
        "Trust whoever built the run: open the model and data that it names, now and from now on.", "--trust"
    ),
]
AsJson = Annotated[bool, flag("Print the result as JSON.", "--json")]


def open_run(run: Path, model: str | None, trust: bool, memory: str | None = None) -> "OpenRun":
    """Open a run with its model and data: those that it names, if it is the user's or trusted."""
    from interbasis.graph.trust import trust as trust_run
    from interbasis.run import run as front

    if trust:
        trust_run(run)
    return front.open_run(run, model=model, memory=memory)


def show(
    result: R,
    as_json: bool,
    tables: Callable[[R], Iterable[RenderableType]],
    run: Path | None = None,
    *notes: str,
) -> None:
    """Print a result as JSON, with the run it belongs to, or as tables with notes after them."""
    from interbasis.show.tables import print_parts

    if as_json:
        values = json.loads(result.to_json())
        print_text(json.dumps(values if run is None else values | {"run": str(run)}, indent=2))
        return
    print_parts([*tables(result), *notes])


def print_text(text: str) -> None:
    """Print text on standard output, with control characters escaped."""
    clear_line()
    print(printable(text), flush=True)
