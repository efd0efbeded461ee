"""Confidence intervals of means."""

import pytest
import torch

from interbasis.numerics.intervals import mean_interval


def test_an_interval_worked_out_by_hand() -> None:
    """Mean 2, deviation 1, three values: t of 2 degrees of freedom at 97.5 % is 4.30265."""
    low, high = mean_interval(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert (low, high) == pytest.approx((2 - 4.30265273 / 3**0.5, 2 + 4.30265273 / 3**0.5), rel=1e-8)


def test_19_of_20_intervals_hold_the_mean() -> None:
    values = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    held = sum(low <= 0 <= high for low, high in map(mean_interval, values))
    assert held / 1000 == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 1000) ** 0.5)
