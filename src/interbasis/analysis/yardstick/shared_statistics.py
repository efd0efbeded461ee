"""Statistics of the data that several methods need, collected once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from interbasis.compute.checkpoints import State
from interbasis.compute.executor import Executor, Pass
from interbasis.data.batches import Batches
from interbasis.lib.statistics import StatisticsPass, Wanted


@dataclass(frozen=True, eq=False)
class SharingExecutor(Executor):
    """An executor that runs equal passes for statistics once, whichever method asks first."""

    states: dict[tuple[str, Wanted] | None, State] = field(default_factory=dict)
    """Sums by the data's name and what was wanted of them."""

    def run_all(self, work: Sequence[tuple[Pass[Any], Batches]]) -> list[Any]:
        """Return the states of passes that do not depend on each other."""
        missing = [pair for pair in work if _key(pair[0]) not in self.states]
        results = {}
        for (pass_, _), state in zip(missing, super().run_all(missing), strict=True):
            results[id(pass_)] = state
            if key := _key(pass_):
                self.states[key] = pass_.dump(state)
        for pass_, _ in work:
            if id(pass_) not in results:
                results[id(pass_)] = pass_.load(self.states[_key(pass_)])
        return [results[id(pass_)] for pass_, _ in work]


def _key(pass_: Pass[Any]) -> tuple[str, Wanted] | None:
    """Identity of a pass for statistics; None for any other pass, which is never shared."""
    return (pass_.data, pass_.wanted) if isinstance(pass_, StatisticsPass) else None
