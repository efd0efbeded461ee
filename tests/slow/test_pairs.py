"""Forty random pairs of commands on one run at the same time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pairs import Pairs, random_pairs, run_pairs


@pytest.mark.slow
def test_forty_random_pairs_of_commands_give_right_results_or_one_refusal(
    tmp_path: Path,
    small_addition: Path,
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setenv("INTERBASIS_SAVE_EVERY", "0")
    found = run_pairs(Pairs(small_addition, tmp_path), random_pairs(40, seed=30))
    record_property("pairs", str(dict(found)))
    print(dict(found))
    assert found.total() == 40
    assert len(found) > 1  # some of them did overlap
