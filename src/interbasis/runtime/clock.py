"""Seconds per phase of some work."""

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

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        inner_before, start = sum(self.seconds.values()), time.perf_counter()
        try:
            yield
        finally:
            inner = sum(self.seconds.values()) - inner_before
            passed = time.perf_counter() - start - inner
            self.seconds[phase] = self.seconds.get(phase, 0.0) + passed

    def timing(self, phase: str, function: Callable[P, R]) -> Callable[P, R]:
        """The same function, its time counted for a phase."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with self(phase):
                return function(*args, **kwargs)

        return timed
