"""Integration rules for ∫₀¹ dα along the straight line from 0 to the activation."""

from dataclasses import dataclass
from typing import get_args

import numpy as np

from interbasis.base.errors import InterbasisError
from interbasis.base.records import Method


@dataclass(frozen=True)
class Rule:
    """∫₀¹ g(α) dα ≈ Σ wᵢ g(αᵢ); with ``closed_form`` a core that knows the integral uses that instead."""

    method: Method
    nodes: tuple[float, ...]
    weights: tuple[float, ...]
    closed_form: bool = False


def rule(method: Method = "gradient", points: int = 16) -> Rule:
    """The integration rule of a method.

    - ``gradient``: the integrand at α = 1, as in the paper.
    - ``quadrature``: Gauss–Legendre with ``points`` nodes.
    - ``trapezoid``: the trapezoid rule with ``points`` intervals, as in the paper's pseudocode.
    - ``exact``: the closed form where a core has one, Gauss–Legendre with ``points`` nodes elsewhere.
    """
    if points < 1:
        raise InterbasisError(f"an integration rule needs at least 1 point, not {points}")
    if method == "gradient":
        return Rule(method, (1.0,), (1.0,))
    if method == "trapezoid":
        weights = np.full(points + 1, 1 / points)
        weights[[0, -1]] /= 2
        return Rule(method, tuple(np.linspace(0, 1, points + 1)), tuple(weights))
    if method in ("exact", "quadrature"):
        nodes, weights = np.polynomial.legendre.leggauss(points)
        return Rule(method, tuple((nodes + 1) / 2), tuple(weights / 2), closed_form=method == "exact")
    raise InterbasisError(f"the edge method is one of {', '.join(get_args(Method))}, not {method!r}")
