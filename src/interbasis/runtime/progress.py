"""Telling how far long work has come."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called as progress(phase, samples done, samples in all)."""


def silent(phase: str, done: int, total: int) -> None:
    """Say nothing."""


@contextmanager
def progress_bar(show: Progress | bool | None = None) -> Iterator[Progress]:
    """A bar per phase on standard error, with the time left; by default only where that is a terminal.

    A function that was given takes the bars' place.
    """
    if callable(show):
        yield show
        return
    if not (sys.stderr.isatty() if show is None else show):
        yield silent
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
