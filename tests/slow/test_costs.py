"""The cost model within 30 % of measurements; only a machine without other work can tell."""

import pytest
import torch

from interbasis_studies.bench.costs import SEEN, UNSEEN, agreement

pytestmark = pytest.mark.slow

CASES = SEEN | UNSEEN


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_within_30_percent(name, monkeypatch, tmp_path):
    monkeypatch.setenv("INTERBASIS_CACHE", str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = agreement(CASES[name])
    finally:
        torch.set_num_threads(threads)
    assert 1 / 1.3 <= found.ratio <= 1.3
