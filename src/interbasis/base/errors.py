"""Error that interbasis raises on purpose.

Its message is one sentence or two that a person can act on: what was expected, what was received,
what to do. The command line prints it and exits with code 2.
"""

from reprlib import Repr
from typing import TYPE_CHECKING

from interbasis.base.messages import printable

if TYPE_CHECKING:
    from pydantic import ValidationError


MAX_SHOWN = 120
"""Characters of a value that a message shows."""


class InterbasisError(ValueError):
    """The input cannot be used; the message says why and what to do, without control characters."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


def first_problem(error: "ValidationError") -> str:
    """Return the first problem that pydantic reports: "seed: input should be at least 0, received -1"."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]
    where = ".".join(
        part if part.isprintable() and len(part) <= MAX_SHOWN else short_repr(part) for part in parts
    )
    reason = first["msg"][0].lower() + first["msg"][1:]
    if isinstance(first["input"], str | int | float | None) and first["type"] != "missing":
        reason += f", received {short_repr(first['input'])}"
    return f"{where}: {reason}" if where else reason


def short_repr(value: object) -> str:
    """A value out of a file, for a message: a line or two at most, and nothing that cannot be printed."""
    shown = Repr()
    shown.maxstring = shown.maxother = MAX_SHOWN
    shown.maxlevel = 2
    return shown.repr(value)
