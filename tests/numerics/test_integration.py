"""Rules for ∫₀¹ dα: the weights add up to 1, and each is exact for the polynomials it should be."""

import pytest

from interbasis import InterbasisError
from interbasis.numerics.integration import Rule, rule


def integral(made: Rule, degree: int) -> float:
    return sum(weight * node**degree for node, weight in zip(made.nodes, made.weights, strict=True))


@pytest.mark.parametrize("points", [1, 2, 5, 16])
def test_quadrature_is_exact_up_to_degree_2n_minus_1(points: int) -> None:
    for degree in range(2 * points):
        assert integral(rule("quadrature", points), degree) == pytest.approx(1 / (degree + 1), rel=1e-13)


@pytest.mark.parametrize("points", [1, 2, 5, 16])
def test_the_trapezoid_rule_is_exact_for_lines_and_off_by_a_known_amount_for_squares(points: int) -> None:
    made = rule("trapezoid", points)
    assert len(made.nodes) == points + 1
    assert integral(made, 0) == pytest.approx(1, rel=1e-14)
    assert integral(made, 1) == pytest.approx(1 / 2, rel=1e-14)
    assert integral(made, 2) - 1 / 3 == pytest.approx(1 / (6 * points**2), rel=1e-10)


def test_the_gradient_is_the_integrand_at_the_end() -> None:
    assert (rule("gradient").nodes, rule("gradient").weights) == ((1.0,), (1.0,))


def test_exact_asks_for_the_closed_form_and_falls_back_to_quadrature() -> None:
    exact, quadrature = rule("exact", 7), rule("quadrature", 7)
    assert (exact.nodes, exact.weights) == (quadrature.nodes, quadrature.weights)
    assert [made.closed_form for made in (exact, quadrature, rule(), rule("trapezoid"))] == [True] + [
        False
    ] * 3


def test_no_points_and_unknown_methods_are_refused() -> None:
    with pytest.raises(InterbasisError, match="at least 1 point"):
        rule("quadrature", 0)
    with pytest.raises(InterbasisError, match="is one of gradient"):
        rule("simpson")  # type: ignore[arg-type]
