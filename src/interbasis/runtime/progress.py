"""Telling how far long work has come."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called as progress(phase, samples done, samples in all)."""


SECONDS_BETWEEN_LINES = 30.0
"""Where standard error is a file or a pipe."""


def silent(phase: str, done: int, total: int) -> None:
    """Say nothing."""


@contextmanager
def progress_bar(show: Progress | bool | None = None) -> Iterator[Progress]:
    """A bar per phase on standard error, with the time left.

    Where that is no terminal, a line every half minute. A function that was given takes the bars' place;
    False shows nothing.
    """
    if callable(show) or show is False:
        yield show or silent
        return
    if show is None and not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("·"), TimeRemainingColumn(),
    )  # fmt: skip
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield report


def _lines() -> Progress:
    """A line for log files, at most one in half a minute: short work prints nothing."""
    last = time.monotonic()

    def report(phase: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            share = f" ({done / total:.0%})" if total else ""
            print(
                f"{time.strftime('%H:%M:%S')} {phase}: {done:,} of {total:,}{share}",
                file=sys.stderr,
                flush=True,
            )

    return report
