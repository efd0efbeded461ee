"""Signs that belong to samples: balanced, and the same in whatever batches."""

import pytest
import torch

from interbasis.numerics.random_signs import random_signs


@pytest.mark.parametrize("per_sample", [1, 7, 300])
def test_signs_belong_to_samples_whatever_the_batches(per_sample: int) -> None:
    whole = random_signs(("edges", 5, 0), 0, 40, per_sample)
    parts = [
        random_signs(("edges", 5, 0), first, count, per_sample)
        for first, count in ((0, 11), (11, 1), (12, 28))
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert set(whole.unique().tolist()) == {-1.0, 1.0}
    assert not torch.equal(whole, random_signs(("edges", 6, 0), 0, 40, per_sample))
    assert not torch.equal(whole, random_signs(("edges", 5, 1), 0, 40, per_sample))
    assert not torch.equal(whole, random_signs(("jacobian", 5, 0), 0, 40, per_sample))


def test_signs_are_balanced_and_uncorrelated() -> None:
    signs = random_signs(("edges", 0, 0), 0, 4000, 6)
    assert (signs.T @ signs / 4000 - torch.eye(6)).abs().max() < 0.06
    assert signs.mean(0).abs().max() < 0.06
