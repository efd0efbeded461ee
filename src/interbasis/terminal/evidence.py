"""Curves and controls as plain data, and for a terminal."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType

from interbasis.ablation.controls import Control
from interbasis.ablation.curves import Curve, Curves
from interbasis.ablation.sparsity import plain
from interbasis.run.summary import make_table


def plain_curves(curves: Curves, names: Sequence[str]) -> dict[str, Any]:
    """``names`` are those of the node layers."""
    return {
        "metric": curves.metric,
        "baseline": curves.baseline,
        "fractions": list(curves.fractions),
        "sections": [
            {"from": names[k], "to": names[k + 1]} | _plain_curve(curve)
            for k, curve in enumerate(curves.sections)
        ],
        "whole": _plain_curve(curves.whole),
    }


def _plain_curve(curve: Curve) -> dict[str, Any]:
    result = asdict(curve)
    del result["sections"]
    return {key: _finite(value) for key, value in result.items()}


def _finite(value: Any) -> Any:
    """Lists for tuples, and None for what is not defined, as JSON wants it."""
    if isinstance(value, (tuple, list)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def plain_controls(rows: Sequence[Control], names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "basis": row.basis,
            "network": row.network,
            "ranking": row.ranking,
            "curves": plain_curves(row.curves, names),
            "sparsity": plain(row.sparsity),
            "edges_required": [found.count for found in row.required],
            "stable_counts": [found.stable_count for found in row.required],
            "stress": [asdict(found) for found in row.stress],
        }
        for row in rows
    ]


def curve_tables(result: dict[str, Any]) -> list[RenderableType]:
    metric = result["metric"].replace("_", "-")
    percents = [f"{100 * fraction:g} %" for fraction in result["fractions"]]
    table = make_table(f"{metric} with the largest edges kept", "section", *percents, "area", "distance")
    for row in (*result["sections"], result["whole"] | {"from": ""}):
        name = f"{row['from']} → {row['to']}" if row["from"] else "all sections"
        table.add_row(
            name, *(f"{value:.3f}" for value in row["values"]), _cell(row["area"]), _cell(row["distance"])
        )
    table.caption = (
        f"{metric} of the untouched model: {result['baseline']:.5f}. Area: under the faithfulness curve, 1 "
        "if few edges do it all. Distance: area between the curve and 1.\n"
    )
    return ["", table, *_sparsity_table(result["sparsity"], "section", None)]


def control_tables(result: dict[str, Any]) -> list[RenderableType]:
    rows = result["rows"]
    sections = [f"{row['from']} → {row['to']}" for row in rows[0]["curves"]["sections"]]
    table = make_table("Area under the faithfulness curve", "control", *sections, "all at once")
    for row in rows:
        curves = [*row["curves"]["sections"], row["curves"]["whole"]]
        cells = ["{} ({}–{})".format(*map(_cell, (c["area"], *c["area_interval"]))) for c in curves]
        table.add_row(row["name"], *cells)
    table.caption = "In brackets: 95 % bootstrap interval over the samples.\n"
    stressed = make_table(
        "Parts of the edges declared unneeded", "section", "needed", "unneeded", "all gone", "random halves",
        "worst half", "failed",
    )  # fmt: skip
    for row in rows:
        for k, stress in enumerate(row["stress"]):
            halves = stress["halves"] or [stress["all_gone"]]
            stressed.add_row(
                f"{row['name']}: {sections[k]}", str(row["edges_required"][k]), str(stress["unneeded"]),
                f"{stress['all_gone']:.5f}", f"{min(halves):.5f}–{max(halves):.5f}",
                f"{stress['worst_half']:.5f}", f"{stress['failed']} of {stress['tried']}",
            )  # fmt: skip
    stressed.caption = (
        "The metric when all, random halves, or a bad half (short search) of the unneeded edges are ablated; "
        "failed: halves that miss the threshold, which all of them together meet.\n"
    )
    parts: list[RenderableType] = ["", table, stressed]
    for k, name in enumerate(sections):
        measured = [{"name": row["name"]} | row["sparsity"][k] for row in rows if row["sparsity"]]
        parts += _sparsity_table(measured, "control", name)
    return parts


def _sparsity_table(rows: list[dict[str, Any]], first: str, title: str | None) -> list[RenderableType]:
    where = f", {title}" if title else ""
    table = make_table(
        f"Sparsity without a threshold{where}", first, "inputs", "Gini", "Hoyer", "> 0.5 %", "> 1 %", "> 2 %",
        "> 4 %", "kurtosis",
    )  # fmt: skip
    for row in rows:
        name = row["name"] if title else f"{row['source']} → {row['target']}"
        table.add_row(
            name, f"{row['participation']:.1f}", f"{row['gini']:.3f}", f"{row['hoyer']:.3f}",
            *(f"{share:.1%}" for share in row["share_above"]), f"{row['kurtosis']:.0f}",
        )  # fmt: skip
    table.caption = (
        "Of edges divided by the norm of their output feature's. Inputs: participation ratio, how many "
        "inputs an output feature effectively has. > x %: share of edges above x % of that norm.\n"
    )
    return [table]
