"""Messages beside results: Python's logger `interbasis`, which the command line prints on standard error.

Warnings are always printed. `--quiet` leaves out progress and messages of level INFO, `--verbose` adds those
of level DEBUG: timings, and which files are written. In Python, what `--quiet` does is
`logging.getLogger("interbasis").setLevel(logging.WARNING)`.
"""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Everything that is not shown but obeyed (C0 without tabs and line ends, C1, the direction of text), and
halves of surrogate pairs, which cannot be encoded."""


def printable(text: str) -> str:
    r"""Escape control characters as Python writes them, ``\x1b`` for ESC; tabs and line ends stay."""
    return CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


logger = logging.getLogger("interbasis")


def _escape_control_characters(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True


logger.addFilter(_escape_control_characters)


def is_quiet() -> bool:
    """Whether progress is not wanted."""
    return logger.level >= logging.WARNING


@contextmanager
def printed_messages(level: int) -> Iterator[None]:
    """Messages of this level and above go to standard error."""
    before, handler = logger.level, _Handler()
    logger.setLevel(level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Handler(logging.Handler):
    """A line per message, on whatever standard error is at that moment: progress bars replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        clear_line()
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        print(printable(f"{mark}{self.format(record)}"), file=sys.stderr, flush=True)


_line_is_shown = False


def show_line(text: str) -> None:
    """A line on a terminal's standard error that the next output replaces."""
    global _line_is_shown
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()
        _line_is_shown = True


def clear_line() -> None:
    """Remove the line that was shown, before anything else is."""
    global _line_is_shown
    if _line_is_shown:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
        _line_is_shown = False
