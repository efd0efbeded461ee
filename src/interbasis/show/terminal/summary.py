"""A run in a few numbers, for a terminal."""

from rich.console import RenderableType
from rich.text import Text

from interbasis.analysis.summary import LayerSummary, RunSummary, SectionSummary
from interbasis.show.terminal.tables import ResultTable, make_table

MAX_ROWS = 24
"""Rows up to which a table is printed whole."""
ROWS_SHOWN = 12
"""Of a longer table."""


def summary_tables(summary: RunSummary, folder: str, all_rows: bool = False) -> list[RenderableType]:
    """A run in a few numbers; ``folder`` is where it is saved.

    Of many layers and sections, the first and the last ones are shown, and the layers whose largest
    directions have the largest shares, unless ``all_rows`` are wanted.
    """
    seconds = sum(summary.seconds.values())
    head = Text.assemble(
        ("\n" + summary.basis.upper(), "bold"), " of ", (summary.model or summary.family, "bold"),
        f" · {summary.samples['data']:,} samples · {seconds:.1f} s · saved in {folder}\n",
    )  # fmt: skip
    layers, sections = list(summary.layers.values()), list(summary.sections.values())
    most = len(layers) if all_rows or len(layers) <= MAX_ROWS else ROWS_SHOWN
    parts: list[RenderableType] = [head, _layer_table(layers).ends(most)]
    if any(layer.largest_direction for layer in layers):
        parts.append(_direction_table(summary, most))
    if sections:
        parts.append(_edge_table(sections).ends(most))
    if most < len(layers):
        parts.append(
            f"\nThe tables show {most} of {len(layers)} node layers; to see all: "
            f"interbasis show {folder} --all"
        )
    return parts


def _layer_table(rows: list[LayerSummary]) -> ResultTable:
    hooks = any(row.hook for row in rows)
    sampled = any(row.eigenvalue_error is not None for row in rows)
    table = make_table(
        "Node layers", "layer", "width", "features", "noise", "unused", "margin", "effective", "largest",
        *(["error of Λ"] if sampled else []), *(["TransformerLens"] if hooks else []),
    )  # fmt: skip
    for row in rows:
        error = "–" if row.eigenvalue_error is None else f"{row.eigenvalue_error:.1%}"
        table.add_row(
            row.name, str(row.width), str(row.features), str(row.dropped_as_noise),
            str(row.dropped_as_unused), _number(row.last_kept_over_floor),
            f"{row.effective_features:.1f}", _number(row.largest),
            *([error] if sampled else []), *([row.hook or "–"] if hooks else []),
        )  # fmt: skip
    table.caption = (
        "Features count the constant. Noise: directions whose variance is rounding; unused: "
        "directions without effect on the next layer. Margin: the last value kept, divided by its noise "
        "floor. Effective: participation ratio of what ranks the features "
        "(Λ; variance in PCA and at the end).\n"
    )
    if sampled:
        table.caption += "Error of Λ: relative standard error, since queries were sampled.\n"
    return table


def _direction_table(summary: RunSummary, most: int) -> ResultTable:
    title = "Largest direction of every layer"
    rows = [(row.name, row.largest_direction) for row in summary.layers.values() if row.largest_direction]
    if len(rows) > most:
        title = f"Largest direction of the {most} layers where its share is largest"
        top = {name for name, _ in sorted(rows, key=lambda row: row[1].share)[-most:]}
        rows = [row for row in rows if row[0] in top]
    known = [largest for _, largest in rows]
    carriers = {
        "positions": any(largest.positions for largest in known),
        "tokens": any(largest.tokens for largest in known),
    }
    unit = "tokens" if carriers["tokens"] else "positions" if carriers["positions"] else "samples"
    shown = [kind for kind, any_known in carriers.items() if any_known]
    table = make_table(title, "layer", "share", "counted", "left out", "max norm", *shown)
    for name, largest in rows:
        texts = {c.index: repr(summary.token_texts.get(c.index, c.index)) for c in largest.tokens}
        named = {
            "positions": ", ".join(f"{c.index} {c.share:.0%}" for c in largest.positions[:2]) or "–",
            "tokens": ", ".join(f"{texts[c.index]} {c.share:.0%}" for c in largest.tokens[:2]) or "–",
        }
        table.add_row(
            name, f"{largest.share:.1%}", f"{largest.share_counted:.1%}", f"{largest.left_out:.1%}",
            f"{largest.largest_norm / largest.median_norm:.1f}" if largest.median_norm else "–",
            *(named[kind] for kind in shown),
        )  # fmt: skip
    carrying = " and ".join(shown)
    table.caption = (
        f"Share of the layer's variance along its largest direction, over the first {unit} of the data, all "
        "of them and those that count in the sums. Max norm: as a multiple of the layer's median. "
        + (f"{carrying.capitalize()}: which carry most of it, with their shares. " if shown else "")
        + f"{_counted(summary, unit)}\n"
    )
    return table


def _counted(summary: RunSummary, unit: str) -> str:
    """What the sums of the build left out."""
    parts = [f"the first {summary.skip_positions} positions"] if summary.skip_positions else []
    if summary.norm_limit:
        parts.append(f"{unit} whose norm exceeds {summary.norm_limit:g} times the median of their layer")
    left_out = f"Left out of all sums: {' and '.join(parts)}." if parts else f"All {unit} count in the sums."
    return left_out + (" The largest direction is a feature of its own." if summary.isolate_largest else "")


def _edge_table(rows: list[SectionSummary]) -> ResultTable:
    estimated = rows[0].median_relative_error is not None
    titles = ["section", "edges", "largest", "90 % of Ê²", "99 % of Ê²"]
    table = make_table("Interaction edges Ê", *titles, *(["error"] if estimated else []))
    for row in rows:
        cells = [
            row.name, f"{row.edges:,}", _number(row.largest),
            f"{row.edges_for_90_percent:,}", f"{row.edges_for_99_percent:,}",
        ]  # fmt: skip
        table.add_row(*cells, *([f"{row.median_relative_error:.1%}"] if estimated else []))
    table.caption = (
        "The constant's edges are left out. 90 % of Ê²: how many of the largest edges carry that share."
    )
    if estimated:
        table.caption += " Error: median relative standard error of Ê."
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
