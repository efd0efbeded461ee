"""The command line: parse, call, print. A command is a file, imported when it is called."""

import os
import sys

from cyclopts import App, CycloptsError, Group
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

COMMANDS = {
    "First steps": {
        "demo": "Find the interaction graph of a transformer that comes with interbasis.",
        "bench": "Measure the speed of this version: phases in forward passes, ratios to autograd, memory.",
        "doctor": "Show what is installed and what works on this machine.",
        "train": "Train a model of the paper, or a small residual network.",
    },
    "From a model to its graph": {
        "show": "Summarise a run, or list the sections that a model becomes before anything is built.",
        "plan": "Print what a build will take: operations, memory and time per phase.",
        "build": "Build the interaction graph of a model and save it as a run.",
        "shards": "List the jobs that build a run in shards, or print a script for SLURM.",
        "merge": "Join the shards of one round of a build; after the last round, save the run.",
    },
    "What matters": {
        "ablate": "Find the fewest edges of every section that keep the model's accuracy.",
        "curves": "Measure the metric with 0.1 to 100 % of the edges kept, per section and in all at once.",
        "modules": "Group the features of all layers into modules.",
    },
    "What it means": {
        "features": "Find out what the features of a run respond to and what they do.",
        "trace": "Trace one computation: which features, at which positions, made an output what it is.",
        "steer": "Change a feature on one prompt and compare the outputs before and after.",
        "view": "Show a run as a page in the browser, served on this machine only, until Ctrl+C.",
    },
    "What may be claimed": {
        "controls": "Compare the run with other bases, scrambled weights and random rankings.",
        "compare": "Compare two runs of one model: features, edges, ablation, modules.",
        "report": "Write a report: the numbers, the figures, and what may be claimed from them.",
        "export": "Export a run as HTML, GraphML, parquet or JSON.",
        "reproduce": "Reproduce a section of the paper, all its tables, with a verdict per claim.",
        "scoreboard": "Score every basis on networks whose features, interactions and modules are known.",
    },
}  # fmt: skip
"""In groups, in the order of work, with the first line of each one's help."""
RESUMING = {"build", "ablate", "features", "controls", "reproduce", "scoreboard", "train", "bench"}
"""Commands that resume when they are given again."""


def _app(listing: bool = False) -> App:
    """All commands, imported when called; listed with their lines, which would replace their own help."""
    made = App(
        name="interbasis",
        help="Find the features a neural network computes with, and how they act on each other.",
        version_flags=["--version", "-V"],
    )
    for number, (title, commands) in enumerate(COMMANDS.items()):
        group = Group(title, sort_key=number)
        for place, (name, line) in enumerate(commands.items()):
            made.command(
                f"interbasis.cli.{name}:{name}", name=name, help=line if listing else None, group=group,
                sort_key=place,
            )  # fmt: skip
    made["--help"].group = made["--version"].group = Group("Options", sort_key=len(COMMANDS))
    return made


app = _app()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends with one sentence on standard error and exit code 2."""
    from interbasis.runtime.errors import InterbasisError
    from interbasis.runtime.signals import say_when_ended

    say_when_ended()
    process = int(os.environ.get("RANK", "0"))  # of those that torchrun started; the first one prints
    if process:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and not given[0].startswith("-"):
            app(given, exit_on_error=False, print_error=False)
        else:
            _app(listing=True)(given, exit_on_error=False, print_error=False)
    except (InterbasisError, CycloptsError) as error:
        where = f" in process {process + 1}" if process else ""
        Console(stderr=True, soft_wrap=True).print(
            f"[bold red]error{where}:[/] {escape(_sentence(error))}", highlight=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        resumes = "; the same command resumes" if RESUMING.intersection(given[:1]) else ""
        print(f"interrupted{resumes}", file=sys.stderr)
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
