"""Measurements as sentences need them: areas with intervals, counts of controls, whether edges do a thing."""

from collections.abc import Iterable
from math import isnan

from interbasis.analysis.ablation.records import Control, Curve, Curves, Interval

MIN_MOST_FAITHFULNESS = 0.9
"""Faithfulness from which a part of the edges does most of the work of all."""


def area_with_interval(curve: Curve) -> str:
    """The area under a curve with its interval, as far as they are defined."""
    limits = known_interval(curve)
    if isnan(curve.area):
        return "not defined"
    return f"{curve.area:.4f}" + (f" ({limits[0]:.4f} to {limits[1]:.4f})" if limits else "")


def does_something(curve: Curve) -> bool:
    """Whether the metric with no edges lies outside the 95 % interval of that with all of them."""
    low, high = curve.value_intervals[-1]
    if isnan(curve.area) or isnan(curve.without_edges):
        return False
    return curve.without_edges < low or curve.without_edges > high


def known_interval(curve: Curve) -> Interval | None:
    """The interval of the area; None where it is undefined, or one that the bootstrap could not open."""
    low, high = curve.area_interval
    return None if isnan(low) or isnan(high) or low == high else (low, high)


def scrambled_counts(rows: Iterable[Control]) -> dict[str, int]:
    """Edges required over all sections by the controls with scrambled weights, by their names.

    A scrambled network that answers alike without edges has nothing that edges could carry, and is left out.
    """
    return {
        row.name: sum(section.count for section in row.required.values())
        for row in rows
        if row.network != "trained" and row.required and does_something(row.curves.whole)
    }


def share_that_does_most(curves: Curves) -> tuple[float, float]:
    """(fraction of the edges, the metric there), all sections at once: the smallest fraction from which
    faithfulness stays above `MIN_MOST_FAITHFULNESS`; all edges where none does."""
    step = len(curves.fractions) - 1
    while step and curves.whole.faithfulness[step - 1] >= MIN_MOST_FAITHFULNESS:
        step -= 1
    return curves.fractions[step], curves.whole.values[step]
