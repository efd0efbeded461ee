"""The options of a command, from the command line itself: <!-- options: build --> becomes a table."""

import re
from inspect import Parameter
from typing import Any, Literal, get_args, get_origin

from sphinx.application import Sphinx

from interbasis.cli import app as command_line

MARK = re.compile(r"<!-- options: (\w+(?: \w+)*) -->")


def setup(app: Sphinx) -> None:
    app.connect("source-read", put_in)


def put_in(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = MARK.sub(lambda found: table(found[1]), source[0])


def table(command: str) -> str:
    """A row for every argument and option of a command."""
    rows = ["| argument or option | meaning | default |", "|---|---|---|"]
    called = command_line
    for word in command.split():
        called = called[word]
    for argument in called.assemble_argument_collection():
        if not argument.parse or argument.children:  # a request, whose fields are the options
            continue
        names = " ".join(f"`{name}`" for name in argument.names)
        words = " ".join(f"`{word}`" for word in choices(argument.hint))
        meaning = argument.parameter.help or ""
        rows.append(
            f"| {names} | {cell(meaning)}{' One of ' + words + '.' if words else ''} | {default(argument)} |"
        )
    return "\n".join(rows)


def choices(hint: Any) -> list[str]:
    """The words that an option takes, where it takes certain words only."""
    if get_origin(hint) is Literal:
        return [str(word) for word in get_args(hint)]
    parts = [word for part in get_args(hint) for word in choices(part)]
    return [] if int in get_args(hint) else parts


def default(argument: Any) -> str:
    """What holds where the option is not given; required where nothing does."""
    value = argument.field_info.default
    if value is Parameter.empty:
        return "any number" if argument.field_info.kind is Parameter.VAR_POSITIONAL else "required"
    return "" if value is None or value is False else f"`{'yes' if value is True else value}`"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
