"""Progress of long work."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from interbasis.base.messages import clear_line, is_quiet, logger, printable

Progress = Callable[[str, int, int], None]
"""Called as progress(phase, samples done, samples in all)."""


SECONDS_BETWEEN_LINES = 30.0
"""Seconds between two lines of progress where standard error is a file or a pipe."""


def silent(phase: str, done: int, total: int) -> None:
    """Say nothing."""


@contextmanager
def progress_bar(show: Progress | bool | None = None) -> Iterator[Progress]:
    """A bar per phase on standard error, with the time left.

    Where that is no terminal, a line every half minute. A function that was given takes the bars' place;
    False shows nothing, and neither does `--quiet` (`base/messages.py`).
    """
    if callable(show) or show is False:
        yield show or silent
        return
    if is_quiet():
        yield silent
        return
    lines = show is None and not sys.stderr.isatty()
    with _timed() as timed, nullcontext(_print_lines()) if lines else _bars() as shown:

        def report(phase: str, done: int, total: int) -> None:
            timed(phase, done, total)
            shown(phase, done, total)

        yield report


@contextmanager
def _bars() -> Iterator[Progress]:
    """Bars that appear with the first phase."""
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description:<32}", markup=False), rich.BarColumn(), rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(), rich.TextColumn("·"), rich.TimeRemainingColumn(),
    )  # fmt: skip
    bars = rich.Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, rich.TaskID] = {}

    def report(phase: str, done: int, total: int) -> None:
        if not tasks:
            clear_line()
            bars.start()
        if phase not in tasks:
            tasks[phase] = bars.add_task(printable(phase), total=total)
        bars.update(tasks[phase], completed=done, total=total)

    try:
        yield report
    finally:
        if tasks:
            bars.stop()


def _print_lines() -> Progress:
    """A line for log files, at most one in half a minute: short work prints nothing."""
    last = time.monotonic()

    def report(phase: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            share = f" ({done / total:.0%})" if total else ""
            print(
                f"{time.strftime('%H:%M:%S')} {printable(phase)}: {done:,} of {total:,}{share}",
                file=sys.stderr,
                flush=True,
            )

    return report


@contextmanager
def _timed() -> Iterator[Progress]:
    """Log the seconds between the first and the last report of every phase (`--verbose`), as it ends."""
    phases: dict[str, float] = {}
    last = time.perf_counter()

    def report(phase: str, done: int, total: int) -> None:
        nonlocal last
        now = time.perf_counter()
        phases[phase] = phases.get(phase, 0.0) + now - last
        last = now

    yield report
    for phase, seconds in phases.items():
        logger.debug(f"{phase}: {seconds:.1f} s")
