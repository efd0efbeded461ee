"""The goal of a build: an error, or a time, which decide how many samples are drawn round by round."""

import math
import time
from dataclasses import dataclass

from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Executor

MARGIN = 1.05
"""Samples of the next round over those that its error asks for, which is an estimate itself."""
MIN_GROWTH = 1.1
"""A round that would add less than a tenth to the samples is left out."""
TIME_SHARE = 0.95
"""Share of the remaining time that a round may be expected to take; it at most doubles the samples, so that a
machine that has become slower is noticed."""
FIRST_SHARE = 0.25
"""Share of the samples that a trial expects to fit into a time which the first round takes."""


@dataclass(frozen=True)
class Goal:
    """Rounds of samples until an error is reached, or a time is over; without either, one round."""

    error: float | None = None
    deadline: float | None = None
    """When the build should end, by `time.monotonic`."""

    def next_total(
        self, name: str, done: int, most: int | None, error: float, seconds: float, executor: Executor
    ) -> int:
        """Number of samples after the next round, ``done`` where there is none.

        The first process decides and stores it, since clocks differ and a resumed build has its own.

        Args:
            name: Name of the decision.
            done: Samples drawn so far.
            most: Samples that there are; None where they can be drawn again.
            error: Error with those drawn.
            seconds: Time that they took.
            executor: Its processes all take part.
        """
        if done == most or (self.error is None and self.deadline is None):
            return done

        def decide() -> State:
            total = self._total(done, error, seconds)
            return {}, {"total": total if most is None else min(most, total)}

        store = executor.checkpoints
        _, values = executor.team.once(name, lambda: store.remember(name.replace(" ", "-"), decide))
        return int(values["total"])

    def _total(self, done: int, error: float, seconds: float) -> int:
        if self.error is not None:
            wanted = math.ceil(MARGIN * done * (error / self.error) ** 2)
            return done if error <= self.error else max(wanted, done + 1)
        assert self.deadline is not None
        room = TIME_SHARE * (self.deadline - time.monotonic())
        wanted = done + min(int(room / max(seconds / done, 1e-9)), done) if room > 0 else done
        return wanted if wanted >= MIN_GROWTH * done else done


NO_GOAL = Goal()
