"""Counts of features that are mostly one term, and comparisons between bases."""

import numpy as np
import pytest

import interbasis
from interbasis import features
from interbasis.analysis.features.records import FourierLabel, FourierTerm


def labels(*shares: float) -> list[FourierLabel]:
    terms = (
        FourierTerm(text="cos(1x)", share=s, frequencies=(1, 0), phases=(0.0,), amplitudes=(1.0,))
        for s in shares
    )
    return [FourierLabel(form="sum", terms=(term,)) for term in terms]


def test_counts_with_and_without_the_constant() -> None:
    found = features.monosemantic(labels(1.0, 0.95, 0.904, 0.906, 0.3, 0.99), top=4)
    assert (found.paper, found.without_constant) == (3, 2)  # 0.904 is 90 %, which is not above
    assert found.shares == (0.95, 0.904, 0.906, 0.3, 0.99)
    assert features.monosemantic(labels(0.95, 0.5), constant=False).without_constant == 1


def test_bases_are_compared() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.beta(2, 5, 200).tolist(), rng.beta(5, 2, 300).tolist()
    found = features.compare({"pca": low, "lib": high}, points=401)
    for name, values in (("pca", low), ("lib", high)):
        assert np.trapezoid(found.density[name], found.grid) == pytest.approx(1, abs=1e-3)
        assert found.cumulative[name][-1] == 1
        assert found.cumulative[name][200] == np.mean(np.array(values) <= 0.5)
    gap = np.abs(np.array(found.cumulative["pca"]) - np.array(found.cumulative["lib"])).max()
    assert found.distance["pca", "lib"] == pytest.approx(gap, abs=0.02)
    assert found.p_value["pca", "lib"] < 1e-10


def test_equal_shares_have_a_density_too() -> None:
    found = features.compare({"lib": [0.5, 0.5], "pca": [1.0]}, points=1001)
    for density in found.density.values():
        assert np.trapezoid(density, found.grid) == pytest.approx(1, abs=1e-3)


def test_bad_input_is_refused() -> None:
    with pytest.raises(interbasis.InterbasisError, match="at least one feature"):
        features.monosemantic(labels(1.0), top=0)
    with pytest.raises(interbasis.InterbasisError, match="at least one share"):
        features.compare({"lib": []})
