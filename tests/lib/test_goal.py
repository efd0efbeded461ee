"""Samples of the next round: numbers worked out by hand."""

import math
import time

import pytest

from cases import CASES
from interbasis.compute.executor import Executor
from interbasis.lib.goal import MARGIN, NO_GOAL, Goal


def total(goal: Goal, done: int, most: int | None, error: float, seconds: float = 1.0) -> int:
    executor = Executor(CASES["linear"]().network)
    return goal.next_total("a round", done, most, error, seconds, executor)


def test_errors_fall_with_the_root_of_the_samples() -> None:
    assert total(Goal(error=0.1), 100, 1000, 0.2) == math.ceil(MARGIN * 400)
    assert total(Goal(error=0.1), 100, 300, 0.2) == 300  # there are no more
    assert total(Goal(error=0.1), 100, 1000, 0.1) == 100  # reached
    assert total(Goal(error=0.1), 1, 1000, 0.1001) == 2  # at least one more
    assert total(Goal(error=0.1), 300, 300, 0.2) == 300
    assert total(Goal(error=0.1), 300, None, 0.2) == math.ceil(MARGIN * 1200)  # drawn again


def test_without_a_goal_there_is_one_round() -> None:
    assert total(NO_GOAL, 100, 1000, 0.2) == 100


@pytest.mark.parametrize(("remaining", "expected"), [(20.0, 200), (1.0, 147), (0.1, 100), (-1.0, 100)])
def test_rounds_fit_into_the_remaining_time(
    remaining: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 samples took 2 s: 0.95 s are 47 more. A round at most doubles them, and adds a tenth at least."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    assert total(Goal(deadline=1000.0 + remaining), 100, 10_000, 0.2, 2.0) == expected
