"""Which values hold a share of all: worked out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interbasis.analysis.traces.walk import holding


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, [[False, False], [False, False, False]]),
        (0.4, [[False, True], [False, False, False]]),
        (0.5, [[False, True], [True, False, False]]),
        (0.7, [[False, True], [True, False, False]]),
        (0.9, [[True, True], [True, False, False]]),
        (1.0, [[True, True], [True, True, False]]),
    ],
)
def test_the_fewest_values_over_all_layers(share: float, expected: list[list[bool]]) -> None:
    masks = holding([torch.tensor([0.2, 0.4]), torch.tensor([0.3, 0.1, 0.0])], share)
    assert [mask.tolist() for mask in masks] == expected


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=12), share=st.floats(0.01, 0.99))
def test_one_value_less_would_not_do(values: list[float], share: float) -> None:
    flat = torch.tensor(values, dtype=torch.float64)
    (mask,) = holding([flat], share)
    wanted = share * flat.sum()
    assert flat[mask].sum() >= wanted * (1 - 1e-12)
    if mask.any():
        assert flat[mask].sum() - flat[mask].min() < wanted
        assert flat[mask].min() >= flat[~mask].max() if (~mask).any() else True
