"""The one kind of error that interbasis raises on purpose.

Its message is one sentence or two that a person can act on: what was expected, what was received,
what to do. The command line prints it and exits with code 2.
"""

from typing import TYPE_CHECKING

from interbasis.runtime.printable import printable

if TYPE_CHECKING:
    from pydantic import ValidationError


class InterbasisError(ValueError):
    """The input cannot be used; the message says why and what to do, without control characters."""

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


def first_problem(error: "ValidationError") -> str:
    """The first thing that pydantic found wrong: "seed: input should be at least 0, received -1"."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    reason = first["msg"][0].lower() + first["msg"][1:]
    if isinstance(first["input"], str | int | float | None) and first["type"] != "missing":
        reason += f", received {first['input']!r}"
    return f"{where}: {reason}" if where else reason
