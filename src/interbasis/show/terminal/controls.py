"""Controls, for a terminal."""

from rich.console import RenderableType

from interbasis.analysis.ablation.records import Control, Curve
from interbasis.analysis.stages.controls import ControlsResult
from interbasis.show.terminal.curves import decimals, sparsity_table
from interbasis.show.terminal.tables import ResultTable, make_table


def control_tables(result: ControlsResult) -> list[RenderableType]:
    """Areas of every control, parts of ablations, and sparsity section by section."""
    rows = list(result.rows.values())
    sections = list(rows[0].curves.sections)
    parts: list[RenderableType] = ["", _area_table(rows, sections), _stress_table(rows)]
    for name in sections:
        measured = [(row.name, row.sparsity[name]) for row in rows if row.sparsity]
        parts.append(sparsity_table(f"Sparsity without a threshold, from {name}", "control", measured))
    return parts


def _area_table(rows: list[Control], sections: list[str]) -> ResultTable:
    table = make_table("Area under the faithfulness curve", "control", *sections, "all at once")
    for row in rows:
        curves = [*(row.curves.sections[name] for name in sections), row.curves.whole]
        table.add_row(row.name, *map(_area, curves))
    table.caption = (
        "Sections by their source layers. In brackets: 95 % bootstrap interval over the samples.\n"
    )
    return table


def _area(curve: Curve) -> str:
    return "{} ({}–{})".format(*map(decimals, (curve.area, *curve.area_interval)))


def _stress_table(rows: list[Control]) -> ResultTable:
    table = make_table(
        "Subsets of the removed edges", "section", "kept", "removed", "all ablated",
        "random halves", "worst half", "failed",
    )  # fmt: skip
    for row in rows:
        for name, stress in row.stress.items():
            halves = stress.halves or (stress.all_ablated,)
            table.add_row(
                f"{row.name}: {name}", str(row.required[name].count), str(stress.unneeded),
                f"{stress.all_ablated:.5f}", f"{min(halves):.5f}–{max(halves):.5f}",
                f"{stress.worst_half:.5f}", f"{stress.failed} of {stress.tried}",
            )  # fmt: skip
    table.caption = (
        "The metric when all of the removed edges, random halves of them, or a bad half (short search) are "
        "ablated; failed: halves that miss the threshold, although all edges together meet it.\n"
    )
    return table
