"""The goal of a build: an error, or a time, which decide how many samples are drawn round by round."""

import math
import time
from dataclasses import dataclass

from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Executor
from interbasis.graph.settings import BuildConfig

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
        self, name: str, done: int, total: int, error: float, seconds: float, executor: Executor
    ) -> int:
        """Number of samples after the next round, ``done`` where there is none.

        The first process decides and stores it, since clocks differ and a resumed build has its own.

        Args:
            name: Name of the decision.
            done: Samples drawn so far.
            total: Samples that there are.
            error: Error with them.
            seconds: Time that they took.
            executor: Its processes all take part.
        """
        if done >= total or (self.error is None and self.deadline is None):
            return done

        def decide() -> State:
            return {}, {"total": min(total, self._total(done, error, seconds))}

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

    def next_sampling(self, error: float, config: BuildConfig, samples: int) -> dict[str, int]:
        """Settings for another try, where all ``samples`` were drawn and the error is not reached.

        Which part of the error comes from signs and which from sampled positions is not known, so that there
        are more of both; empty where the error is reached.
        """
        assert config.edge_samples is not None
        if self.error is None or error <= self.error or config.edge_samples[-1] < samples:
            return {}
        growth, positions = MARGIN * (error / self.error) ** 2, config.edge_positions
        update = {"edge_sources": max(math.ceil(growth * config.edge_sources), config.edge_sources + 1)}
        if positions is not None:
            update["edge_positions"] = max(math.ceil(growth * positions), positions + 1)
        return update


NO_GOAL = Goal()
