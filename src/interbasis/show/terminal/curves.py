"""Sparsity curves, for a terminal."""

import math
from collections.abc import Iterable

from rich.console import RenderableType

from interbasis.analysis.ablation.records import Sparsity
from interbasis.analysis.stages.curves import CurvesResult
from interbasis.show.terminal.tables import ResultTable, make_table


def curve_tables(result: CurvesResult) -> list[RenderableType]:
    """The metric at each fraction of the edges, and how sparse the edges are."""
    curves = result.curves
    metric = curves.metric.replace("_", "-")
    percents = [f"{100 * fraction:g} %" for fraction in curves.fractions]
    table = make_table(f"{metric} with the largest edges kept", "section", *percents, "area", "distance")
    named = {_name(result.sparsity[source]): curve for source, curve in curves.sections.items()}
    for name, curve in (named | {"all sections": curves.whole}).items():
        values = (f"{value:.3f}" for value in curve.values)
        table.add_row(name, *values, decimals(curve.area), decimals(curve.distance))
    for source, worst in result.worst.items():
        table.add_row(f"worst mask, {_name(result.sparsity[source])}", *(f"{v:.3f}" for v in worst), "", "")
    table.caption = (
        f"{metric} of the untouched model: {curves.baseline:.5f}. Area: under the faithfulness curve, 1 "
        "if few edges do it all. Distance: area between the curve and 1."
        + ("" if curves.all_tokens else " Tokens that the build left out are not masked.")
        + (
            " Worst mask: the worst that gradient ascent found within the edges not kept.\n"
            if result.worst
            else "\n"
        )
    )
    rows = [(_name(section), section) for section in result.sparsity.values()]
    return ["", table, sparsity_table("Sparsity without a threshold", "section", rows)]


def sparsity_table(title: str, first: str, rows: Iterable[tuple[str, Sparsity]]) -> ResultTable:
    """Measures of named rows."""
    table = make_table(
        title, first, "inputs", "Gini", "Hoyer", "> 0.5 %", "> 1 %", "> 2 %", "> 4 %", "kurtosis"
    )
    for name, row in rows:
        table.add_row(
            name, f"{row.participation:.1f}", f"{row.gini:.3f}", f"{row.hoyer:.3f}",
            *(f"{share:.1%}" for share in row.share_above), f"{row.kurtosis:.0f}",
        )  # fmt: skip
    table.caption = (
        "Edges are divided by the norm of all edges into their output feature. Inputs: participation ratio, "
        "how many inputs an output feature effectively has. > x %: share of edges above x % of that norm.\n"
    )
    return table


def decimals(value: float) -> str:
    """Three of them; a dash where the number is undefined."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def _name(section: Sparsity) -> str:
    return f"{section.source} → {section.target}"
