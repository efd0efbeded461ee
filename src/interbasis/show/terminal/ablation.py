"""Edges and nodes required, for a terminal."""

from rich.console import RenderableType

from interbasis.analysis.stages.ablate import AblationResult
from interbasis.show.terminal.tables import ResultTable, make_table


def ablation_tables(result: AblationResult) -> list[RenderableType]:
    """What an ablation measured."""
    metric = result.metric.replace("_", "-")
    parts: list[RenderableType] = [
        f"\n{metric} of the untouched model {result.baseline:.5f} on {result.data.samples:,} "
        f"samples; {result.limit:.5f} or better passes\n"
    ]
    if not result.all_tokens:
        parts.append("Tokens that the build left out are not masked (--all-tokens masks them, too).\n")
    if result.sections:
        parts.append(_edge_table(result, metric))
    if any(row.robust for row in result.sections.values()):
        parts.append(_robust_table(result))
    if result.layers:
        parts.append(_node_table(result))
    return parts


def _edge_table(result: AblationResult, metric: str) -> ResultTable:
    table = make_table("Edges required", "section", "edges", "of", "ε", metric, "all larger pass from")
    for row in result.sections.values():
        stable = "–" if row.stable_count is None else f"{row.stable_count:,}"
        interval = "  [{:,}, {:,}]".format(*row.interval) if row.interval else ""
        differs = "" if row.stable_count in (None, row.count) else "  ≠"
        table.add_row(
            row.name, f"{row.count:,}{interval}", f"{row.possible:,}",
            f"{row.epsilon:.3g}" if row.count else "–", f"{row.value:.5f}", stable + differs,
        )  # fmt: skip
    table.caption = (
        "Edges: by bisection, as in the paper; the constant's are not counted. ε: the smallest edge kept. "
        "Last column: the smallest count on a logarithmic grid from which every larger one passes; "
        "≠: the bisection ended elsewhere, because the metric is not monotone. [ ]: 95 % "
        "bootstrap interval over the samples, with --intervals.\n"
    )
    return table


def _robust_table(result: AblationResult) -> ResultTable:
    table = make_table(
        "Robust counts", "section", "edges", "robust at level", "robust edges", "worst mask", "per input"
    )
    for row in result.sections.values():
        if found := row.robust:
            table.add_row(
                row.name, f"{found.plain:,}", f"{found.level:g}", f"{found.count:,}",
                f"{found.worst_at_plain:.5f}", f"{found.worst_per_input:.5f}",
            )  # fmt: skip
    table.caption = (
        "Robust edges: the fewest on a logarithmic grid such that no mask found within the rest misses the "
        "limit. Worst mask: the metric with the worst mask found within what the plain count leaves out; per "
        "input: where every input has a mask of its own.\n"
    )
    return table


def _node_table(result: AblationResult) -> ResultTable:
    table = make_table("Nodes required", "layer", "nodes", "of")
    for row in result.layers.values():
        count = "more than there are" if row.count is None else str(row.count)
        table.add_row(row.layer, count, str(row.features))
    table.caption = "The smallest number of leading features that passes; the constant counts."
    return table
