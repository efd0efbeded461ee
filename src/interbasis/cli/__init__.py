"""The command line: parse, call, print. A command is a file, imported when it is called."""

import ast
import atexit
import gc
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Annotated, NoReturn

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter
from rich.console import Console
from rich.markup import escape

from interbasis.base.version import VERSION

COMMANDS = {
    "First steps": ("demo", "look", "doctor", "families"),
    "From a model to its graph": ("show", "plan", "build", "shards", "merge"),
    "More features than dimensions": ("dictionary",),
    "What matters": ("ablate", "curves", "modules"),
    "What it means": ("features", "trace", "steer", "intervene", "view"),
    "What may be claimed": ("yardstick", "controls", "compare", "diff", "report", "figures", "export"),
}
"""In groups, in the order of work; command NAME is the function NAME in the module NAME."""
RESUMING = {
    "demo", "build", "ablate", "features", "controls", "yardstick", "diff", "dictionary train",
}  # fmt: skip
"""Commands that resume when they are run again."""
PLUGINS = "interbasis.commands"
"""Entry points of other packages: modules with COMMANDS and RESUMING as above, and a module per command."""
LAST = 100
"""Sort key of what stands after all groups of commands."""
QUIET = {"--quiet", "-q", "--help", "-h"}
"""With these, nothing says that a command is being loaded."""


def plugins() -> list[ModuleType]:
    """Modules of other packages that name further commands."""
    return [point.load() for point in entry_points(group=PLUGINS)]


def command_groups() -> list[tuple[str, str, tuple[str, ...]]]:
    """(package of the commands, title of the group, names of its commands), in the order of help."""
    groups = [(__name__, title, commands) for title, commands in COMMANDS.items()]
    plugged = [(plugin.__name__, *group) for plugin in plugins() for group in plugin.COMMANDS.items()]
    return [*groups, *plugged]


def _first_line(package: str, name: str) -> str:
    """First line of a command's help, read without importing its module, which takes time."""
    file = Path(sys.modules[package].__file__ or "").with_name(f"{name}.py")
    module = ast.parse(file.read_text(encoding="utf-8"))
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    line = (ast.get_docstring(module) or "").partition("\n")[0].partition(": ")[2]  # of commands inside it
    return line[:1].upper() + line[1:]


def _make_app(listing: bool = False) -> App:
    """Make the app of all commands, imported when called; a listing shows a line for each of them."""
    app = App(
        name="interbasis",
        help="Find the features a neural network computes with, and how they act on each other.",
        version=VERSION,
        version_flags=["--version", "-V"],
        help_format="plaintext" if listing else None,  # without loading what reads Markdown
    )
    for number, (package, title, commands) in enumerate(command_groups()):
        group = Group(title, sort_key=number)
        for place, name in enumerate(commands):
            line = _first_line(package, name) if listing else None
            app.command(f"{package}.{name}:{name}", name=name, help=line, group=group, sort_key=place)
    options = Group("Options", sort_key=LAST)
    app.register_install_completion_command(
        help="Install completion of commands and options for bash, zsh or fish.", group=options
    )
    app["--help"].group = app["--version"].group = options

    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        quiet: Annotated[bool, Quiet] = False,
        verbose: Annotated[bool, Verbose] = False,
    ) -> None:
        with _messages(quiet, verbose):
            app(tokens, exit_on_error=False, print_error=False)

    app.meta.default(launch)
    app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False  # main says what to do
    return app


OF_EVERY_COMMAND = Group("Options of every command", sort_key=LAST + 1)
Quiet = Parameter(
    name=("--quiet", "-q"), negative="", show_default=False, group=OF_EVERY_COMMAND,
    help="Print results and warnings only, no progress.",
)  # fmt: skip
Verbose = Parameter(
    name=("--verbose", "-v"), negative="", show_default=False, group=OF_EVERY_COMMAND,
    help="Also print timings, the files written, and the traceback of an error.",
)  # fmt: skip
MAX_NAME_SHOWN = 120
"""Characters of a file's name in a message about it."""
app = _make_app()


@contextmanager
def _messages(quiet: bool, verbose: bool) -> Iterator[None]:
    """Print messages beside the result: warnings alone, notes, or everything with the time it took."""
    from interbasis.base.errors import InterbasisError
    from interbasis.base.messages import logger, printed_messages

    quiet = quiet or os.environ.get("RANK", "0") != "0"  # of the processes of torchrun, the first one tells
    level = logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO
    began = time.perf_counter(), time.process_time()
    with printed_messages(level):
        try:
            yield
        except InterbasisError as error:
            logger.debug("what went wrong", exc_info=error)
            raise
        finally:
            wall, processor = time.perf_counter() - began[0], time.process_time() - began[1]
            logger.debug(f"{wall:.1f} s, {processor:.1f} s of the processor")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends with one sentence on standard error and exit code 2."""
    from interbasis.base import output
    from interbasis.base.errors import InterbasisError
    from interbasis.base.messages import clear_line, show_line
    from interbasis.compute.signals import disable_end_notice, enable_end_notice, torchrun_number

    output.prepare_streams()
    atexit.register(gc.freeze)  # Python need not look through everything for unused objects when it ends
    process = 0  # of those that torchrun started; the first one prints
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _check_characters(arguments)
        process = torchrun_number("RANK", 0)
        enable_end_notice()
        if process:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        named = bool(arguments) and not arguments[0].startswith("-")
        if named and not QUIET.intersection(arguments):
            show_line(f"{arguments[0]}: loading …")
        try:
            if named and not output.can_load_torch():
                raise InterbasisError(
                    "PyTorch does not fit into the memory that this process may use; raise the limit, as "
                    "with ulimit -v unlimited"
                )
            chosen = app if named else _make_app(listing=True)
            chosen.meta(arguments, exit_on_error=False, print_error=False)
        finally:
            clear_line()
            sys.stdout.flush()
    except (InterbasisError, CycloptsError) as error:
        disable_end_notice()
        _refuse(_sentence(error), process)
    except KeyboardInterrupt:
        disable_end_notice()
        resuming = RESUMING.union(*(plugin.RESUMING for plugin in plugins()))
        called = {" ".join(arguments[:words]) for words in (1, 2)}
        resumes = "; the same command resumes" if resuming & called else ""
        print(f"interrupted{resumes}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output has had enough, as head has
        output.discard_output()
        sys.exit(141)
    except Exception as error:
        if isinstance(error, OSError) and (reason := output.output_failure()):
            output.discard_output()
            _fail(f"could not write to standard output ({reason}); what the command stores in files is there")
        if isinstance(error, OSError) and error.filename is not None:  # about a file that was named
            disable_end_notice()
            _refuse(f"could not use {_shortened(str(error.filename))} ({error.strerror})", process)
        if not output.is_out_of_memory(error):
            raise
        _fail("the memory ran out; limit it with --memory where the command has it, or use fewer samples")


def _check_characters(arguments: list[str]) -> None:
    """Refuse what the system could not take as the name of a file."""
    from interbasis.base.errors import InterbasisError

    for argument in arguments:
        try:
            possible = b"\0" not in os.fsencode(argument)
        except UnicodeEncodeError:
            possible = False
        if not possible:
            raise InterbasisError(
                f"the argument {_shortened(ascii(argument))} has a character that no name can have; "
                "leave it out"
            )


def _refuse(sentence: str, process: int) -> NoReturn:
    """End with one sentence, in colour where that is possible."""
    from interbasis.base.messages import printable

    where = f" in process {process + 1}" if process else ""
    Console(stderr=True, soft_wrap=True).print(
        f"[bold red]error{where}:[/] {escape(printable(sentence))}", highlight=False
    )
    sys.exit(2)


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME_SHOWN else f"{name[:MAX_NAME_SHOWN]}…"


def _fail(sentence: str) -> NoReturn:
    """End with one sentence, printed by nothing that requires memory."""
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    sys.exit(2)


def _sentence(error: Exception) -> str:
    """Message of an error; of options that pydantic refused, the first."""
    from pydantic import ValidationError  # here, since it takes time and help does without it

    cause = error.__cause__
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return _missing(error)
    if isinstance(error, CycloptsError) and isinstance(cause, ValidationError):
        first = cause.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        reason = first["msg"][0].lower() + first["msg"][1:]
        return f"{option} cannot be {first['input']}: {reason}"
    return str(error).strip() or type(error).__name__


def _missing(error: MissingArgumentError) -> str:
    """Which option or argument is missing, or which option has no value."""
    assert error.argument is not None
    command = " ".join(["interbasis", *(error.command_chain or ())])
    keyword: str | None = getattr(error, "keyword", None)  # not in the lowest version of cyclopts
    keyword = keyword or next((token.keyword for token in error.argument.tokens if token.keyword), None)
    if keyword:
        return f"{keyword} requires a value; see {command} --help"
    what = (error.argument.parameter.help or "").rstrip(".")
    explained = f" ({what[0].lower()}{what[1:]})" if what else ""
    return f"{error.argument.name} is required{explained}; see {command} --help"
