"""Claims M1 to M8: every rule on both sides of its bounds, with made-up numbers."""

import pytest

from interbasis_studies.paper.tasks.modadd import claims as rules


@pytest.mark.parametrize(
    ("test", "ruling"),
    [((1.0, 0.9995), "reproduced"), ((1.0, 0.9994), "differs"), ((1.0, 0.99), "differs"),
     ((1.0, 0.9899), "not reproduced")],
)  # fmt: skip
def test_m1_models_that_solve_the_task(test: tuple[float, float], ruling: str) -> None:
    assert rules.solved((1.0, 1.0), test).ruling == ruling


def test_m1_looks_at_training_accuracy_too() -> None:
    verdict = rules.solved((0.998, 1.0), (1.0, 1.0))
    assert (verdict.ruling, verdict.by) == ("differs", "0.20 points below 100 %")


@pytest.mark.parametrize(
    ("lib", "ruling"),
    [((9, 9, 9), "reproduced"), ((9, 9, 10), "differs"), ((9, 11, 10), "not reproduced")],
)
def test_m2_attention(lib: tuple[int, int, int], ruling: str) -> None:
    verdict = rules.attention_edges(lib, (10, 10, 10))
    assert verdict.ruling == ruling
    assert verdict.here.startswith(f"{sum(count < 10 for count in lib)} of 3")


@pytest.mark.parametrize(
    ("lib", "ruling"),
    [
        ((9, 9, 9, 11, 11), "reproduced"),
        ((9, 9, 9, 10, 11), "reproduced"),
        ((9, 9, 11, 11, 11), "differs"),
        ((10, 10, 10, 10, 10), "differs"),
        ((9, 9, 9, 9, 9), "not reproduced"),
        ((11, 11, 11, 11, 11), "not reproduced"),
    ],
)
def test_m3_mlp(lib: tuple[int, ...], ruling: str) -> None:
    assert rules.mlp_edges(lib, (10,) * 5).ruling == ruling


@pytest.mark.parametrize(
    ("lib", "ruling"),
    [(74, "differs"), (75, "reproduced"), (99, "reproduced"), (100, "differs"), (105, "differs"),
     (106, "not reproduced")],
)  # fmt: skip
def test_m4_nodes(lib: int, ruling: str) -> None:
    assert rules.nodes((lib, lib), (100, 100)).ruling == ruling


@pytest.mark.parametrize(
    ("lib", "pca", "ruling"),
    [
        (((1, 2), (0, 0)), ((3, 3), (4, 4)), "reproduced"),
        (((1, 2), (0, 0)), ((3, 2), (4, 4)), "differs"),
        (((1, 2), (0, 1)), ((3, 3), (4, 4)), "differs"),
        (((1, 2), (0, 0)), ((2, 1), (4, 4)), "not reproduced"),
        (((1, 2), (0, 0)), ((3, 3), (0, 0)), "not reproduced"),
        (((0, 0), (0, 0)), ((1, 0), (1, 0)), "differs"),
    ],
)
def test_m5_functional_relevance(
    lib: tuple[tuple[int, int], tuple[int, int]], pca: tuple[tuple[int, int], tuple[int, int]], ruling: str
) -> None:
    assert rules.relevance(lib, pca).ruling == ruling


@pytest.mark.parametrize(
    ("lib", "ruling"),
    [((12, 12), "reproduced"), ((8, 8), "reproduced"), ((12, 13), "differs"), ((15, 15), "differs"),
     ((15, 16), "not reproduced")],
)  # fmt: skip
def test_m6_monosemanticity(lib: tuple[int, int], ruling: str) -> None:
    verdict = rules.monosemanticity(lib, (10, 10))
    assert verdict.ruling == ruling
    assert bool(verdict.by) == (ruling != "reproduced")


@pytest.mark.parametrize(
    ("own", "ruling"),
    [((2, 2, 0, 0), "not reproduced"), ((3, 2, 0, 0), "reproduced"), ((3, 3, 0, 0), "reproduced"),
     ((3, 3, 3, 0), "differs")],
)  # fmt: skip
def test_m7_modules(own: tuple[int, ...], ruling: str) -> None:
    assert rules.modules(own).ruling == ruling


@pytest.mark.parametrize(
    ("gib", "ruling"),
    [
        ((109, 90), "reproduced"),
        ((112, 90), "differs"),
        ((130, 71), "differs"),
        ((131, 70), "not reproduced"),
    ],
)
def test_m8_gib(gib: tuple[int, int], ruling: str) -> None:
    assert rules.gib([gib], [(100, 100)]).ruling == ruling


def test_a_verdict_names_its_claim_the_numbers_and_the_rule() -> None:
    verdict = rules.attention_edges((133, 80), (167, 76))
    assert verdict.claim == "M2"
    assert verdict.here == "1 of 2; PCA needs 0.95–1.26 times LIB's"
    assert verdict.ruling == "not reproduced"
    assert verdict.rule
