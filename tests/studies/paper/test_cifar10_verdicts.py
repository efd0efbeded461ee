"""Claims C1 to C6: every rule on both sides of its bounds, with made-up numbers."""

import pytest

from interbasis_studies.paper.tasks.cifar10 import claims as rules


@pytest.mark.parametrize(
    ("test", "ruling"),
    [((0.466, 0.484), "reproduced"), ((0.47, 0.49), "differs"), ((0.42, 0.47), "differs"),
     ((0.47, 0.535), "not reproduced")],
)  # fmt: skip
def test_c1_accuracy(test: tuple[float, float], ruling: str) -> None:
    assert rules.accuracy(test).ruling == ruling


@pytest.mark.parametrize(
    ("lib", "ruling"),
    [
        (((9, 9), (9, 9)), "reproduced"),
        (((9, 9), (9, 10)), "differs"),
        (((9, 9), (10, 10)), "not reproduced"),
    ],
)
def test_c2_sparser(lib: tuple[tuple[int, int], tuple[int, int]], ruling: str) -> None:
    verdict = rules.sparser(lib, ((10, 10), (10, 10)))
    assert verdict.ruling == ruling


def test_c2_gives_the_median_ratio_of_every_layer() -> None:
    verdict = rules.sparser(((10, 100), (10, 100), (10, 100)), ((20, 300), (30, 300), (900, 300)))
    assert verdict.here == "6 of 6; PCA needs 3.0, 3.0 times LIB's (median per layer)"


@pytest.mark.parametrize(
    ("lib", "ruling"),
    [(((50, 50),), "reproduced"), (((51, 50),), "differs"), (((51, 51),), "not reproduced"),
     (((9000, 20), (40, 20), (50, 20)), "reproduced")],
)  # fmt: skip
def test_c3_few_edges(lib: tuple[tuple[int, int], ...], ruling: str) -> None:
    assert rules.few_edges(lib).ruling == ruling


@pytest.mark.parametrize(
    ("lib", "pca", "ruling"),
    [
        ((0.85, 0.93), (0.70, 0.84), "reproduced"),
        ((0.85, 0.93), (0.70, 0.86), "differs"),
        ((0.85, 0.93), (0.80, 0.86), "not reproduced"),
        ((0.85, 0.91), (0.70, 0.80), "not reproduced"),
    ],
)
def test_c4_one_direction(lib: tuple[float, float], pca: tuple[float, float], ruling: str) -> None:
    assert rules.one_direction([lib], [pca], [0.95]).ruling == ruling


@pytest.mark.parametrize(
    ("shares", "ruling"),
    [((0.50, 0.56), "reproduced"), ((0.46, 0.50), "differs"), ((0.66, 0.70), "differs"),
     ((0.38, 0.38), "not reproduced")],
)  # fmt: skip
def test_c5_explained(shares: tuple[float, float], ruling: str) -> None:
    assert rules.explained(shares).ruling == ruling


@pytest.mark.parametrize(
    ("after", "ruling"),
    [((0.56, 0.551), "reproduced"), ((0.56, 0.549), "differs"), ((0.56, 0.50), "not reproduced")],
)
def test_c6_intervention(after: tuple[float, float], ruling: str) -> None:
    assert rules.intervention((0.50, 0.50), after).ruling == ruling


def test_c6_says_by_how_much() -> None:
    verdict = rules.intervention((0.50, 0.51), (0.54, 0.55))
    assert verdict.by == "+4.0 points on average, -3.0 against the paper's +7.0"
