"""The command line: parse, call, print. A command is a file, imported when it is called."""

import os
import sys

from cyclopts import App, CycloptsError
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

app = App(
    name="interbasis",
    help="Find the features a neural network computes with, and how they act on each other.",
    version_flags=["--version"],
)
COMMANDS = (
    "build", "shards", "merge", "show", "ablate", "curves", "controls", "modules", "features", "trace",
    "steer", "view", "export", "report", "compare", "train", "reproduce", "scoreboard", "demo", "doctor",
)  # fmt: skip
for name in COMMANDS:
    app.command(f"interbasis.cli.{name}:{name}", name=name)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends with one sentence on standard error and exit code 2."""
    from interbasis.runtime.errors import InterbasisError
    from interbasis.runtime.signals import say_when_ended

    say_when_ended()
    process = int(os.environ.get("RANK", "0"))  # of those that torchrun started; the first one prints
    if process:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except (InterbasisError, CycloptsError) as error:
        where = f" in process {process + 1}" if process else ""
        Console(stderr=True, soft_wrap=True).print(
            f"[bold red]error{where}:[/] {escape(_sentence(error))}", highlight=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output has had enough, as head has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _sentence(error: Exception) -> str:
    """What was wrong; of options that pydantic refused, the first."""
    cause = error.__cause__
    if isinstance(error, CycloptsError) and isinstance(cause, ValidationError):
        first = cause.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        reason = first["msg"][0].lower() + first["msg"][1:]
        return f"{option} cannot be {first['input']}: {reason}"
    return str(error).strip() or type(error).__name__
