"""Processor time of this process, which other work on the machine changes less than the wall clock."""

import statistics
import time
from collections.abc import Callable

from interbasis_studies.bench.records import Measure


def processor_time(work: Callable[[], object], repeat: int = 3) -> Measure:
    """Of one run: the least of ``repeat``."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return of_times(times)


def of_times(times: list[float]) -> Measure:
    """The least, and how far the median is from it."""
    least = max(min(times), 1e-9)
    return Measure(value=least, spread=statistics.median(times) / least - 1)


def ratio(one: Measure, other: Measure, scale: float = 1.0) -> Measure:
    """One time over another."""
    return Measure(value=scale * one.value / other.value, spread=one.spread + other.spread)
