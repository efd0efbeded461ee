"""`interbasis` in this process, as a user types it; tests get it as the fixture `cli`."""

import contextlib
import io
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

from interbasis.cli import main

SECONDS_BETWEEN_LINES = math.inf
"""Between lines of progress: on a busy machine, quick commands would print some."""


class Ended(NamedTuple):
    """How a command ended: its exit code, and what it wrote to standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What a command that succeeded printed with --json."""
        assert (self.code, self.err) == (0, ""), self.err
        return json.loads(self.out)


Cli = Callable[..., Ended]
"""`interbasis` as a function of its arguments."""


def run_command(*arguments: object) -> Ended:
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            patch("interbasis.base.progress.SECONDS_BETWEEN_LINES", SECONDS_BETWEEN_LINES),
        ):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    return Ended(code, out.getvalue(), err.getvalue())
