"""Error that interbasis raises on purpose.

Its message is one sentence or two that a person can act on: what was expected, what was received,
what to do. The command line prints it and exits with code 2.
"""

from reprlib import Repr
from types import TracebackType
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


class Explained:
    """Context in which errors of some kinds become one `InterbasisError`: "problem (reason); remedy".

    Args:
        problem: What could not be done.
        kinds: Classes of errors; an `InterbasisError` stays as it is.
        remedy: What to do, or what was expected.
    """

    def __init__(self, problem: str, *kinds: type[Exception], remedy: str = ""):
        self.problem, self.kinds, self.remedy = problem, kinds, f"; {remedy}" if remedy else ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, self.kinds) and not isinstance(error, InterbasisError):
            raise InterbasisError(f"{self.problem} ({first_line(error)}){self.remedy}") from error


def first_line(error: BaseException) -> str:
    """Return the system's reason or the first line of somebody else's message, else the name of its class."""
    text = getattr(error, "strerror", None) or error
    return (str(text).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".")


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
