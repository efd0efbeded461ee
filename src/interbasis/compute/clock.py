"""Seconds per phase of some work, on the wall and of the processor."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Clock:
    """Seconds per phase; time in a phase within a phase counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.processor_seconds: dict[str, float] = {}
        """The same without the time in which other work had the processor; of all threads together."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        counters = (self.seconds, time.perf_counter), (self.processor_seconds, time.process_time)
        before = [(sum(seconds.values()), now()) for seconds, now in counters]
        try:
            yield
        finally:
            for (seconds, now), (inner_before, start) in zip(counters, before, strict=True):
                passed = now() - start - (sum(seconds.values()) - inner_before)
                seconds[phase] = seconds.get(phase, 0.0) + passed

    def timing(self, phase: str, function: Callable[P, R]) -> Callable[P, R]:
        """The same function, its time counted for a phase."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with self(phase):
                return function(*args, **kwargs)

        return timed
