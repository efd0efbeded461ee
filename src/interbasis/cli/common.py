"""Parameters that commands share, and printing of results."""

import json
from collections.abc import Callable, Iterable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter
from rich.console import RenderableType

from interbasis.base.errors import InterbasisError
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
Labels = Annotated[
    bool,
    Parameter(
        name="--labels",
        negative="--no-labels",
        help="Describe the features that the page opens with, the first 32 of each layer, as far as "
        "interbasis features has not; once, kept in the run.",
    ),
]


class RunOptions(Record):
    """Options of commands that open a run with its model."""

    model: ModelName = None
    trust: Trust = False

    @property
    def resources(self) -> dict[str, str]:
        """Options on where and how it is computed, as far as they were given."""
        return {k: value for k, value in self if k not in RunOptions.model_fields and value is not None}


class DeviceOptions(RunOptions):
    """The same of commands that compute on a device."""

    device: Device = None


def open_run(run: Path, options: RunOptions) -> "OpenRun":
    """Open a run with its model and data: those that it names, if it is the user's or trusted."""
    from interbasis.graph.store import read_header
    from interbasis.graph.trust import trust as trust_run
    from interbasis.run import run as front

    read_header(run)  # a graph between dictionaries is refused
    if options.trust:
        trust_run(run)
    return front.open_run(run, model=options.model, memory=options.resources.get("memory"))


def describe_opening_views(runs: Iterable[Path]) -> None:
    """Describe the features that the pages of runs open with, as far as that was not done."""
    from interbasis.dictionaries.graph import is_dictionary_graph
    from interbasis.run import run as front
    from interbasis.show.viewer import describe_opening_view

    for run in runs:
        if not is_dictionary_graph(run):
            describe_opening_view(front.open_run(run))


def show_stage(
    run: Path,
    stage: str,
    request: Record,
    as_json: bool,
    options: RunOptions | None = None,
    note: Callable[[Any], str] | None = None,
) -> None:
    """Call a stage of a run, of a graph between dictionaries, too, and print its result.

    Args:
        run: Folder of the run.
        stage: Name of the stage.
        request: Its options.
        as_json: Whether the result is printed as JSON.
        options: Model, trust and resources.
        note: Makes a line that follows the tables of the result.
    """
    from interbasis.run.dictionary_run import DictionaryRun
    from interbasis.show import result_tables, tables  # noqa: F401  (the first registers)

    options = options or RunOptions()
    if hasattr(DictionaryRun, stage) and shown_between(run, stage, request, as_json, options):
        return
    opened = open_run(run, options).on(options.resources.get("device"))
    result = import_module(f"interbasis.analysis.stages.{stage}").run(opened, request)
    show(result, as_json, tables.result_tables, run, *([] if note is None else [note(result)]))


def shown_between(
    run: Path, stage: str, request: Record | None, as_json: bool, options: RunOptions | None
) -> bool:
    """Call a stage of a graph between dictionaries and print its result; False for the folder of another run.

    Args:
        run: Folder of the run.
        stage: Name of the method of `DictionaryRun`.
        request: Options of the stage.
        as_json: Whether the result is printed as JSON.
        options: Model and trust; resources have no use here.

    Raises:
        InterbasisError: An option has no use there.
    """
    from interbasis.dictionaries.graph import is_dictionary_graph
    from interbasis.graph.trust import trust as trust_run
    from interbasis.run.dictionary_run import DictionaryRun, open_dictionary_run
    from interbasis.show.dictionaries.tables import tables

    if not is_dictionary_graph(run):
        return False
    method, options = getattr(DictionaryRun, stage), options or RunOptions()
    arguments = {} if request is None else request.model_dump(include=request.model_fields_set)
    arguments |= options.resources
    known = signature(method).parameters
    if unused := [name for name in arguments if name not in known]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise InterbasisError(
            f"{stage} of a graph between dictionaries has no use for {names}; leave "
            f"{'them' if len(unused) > 1 else 'it'} out"
        )
    if options.trust:
        trust_run(run)
    opened = open_dictionary_run(run, model=options.model)
    show(method(opened, **arguments), as_json, lambda result: tables(result, opened), run)
    return True


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
