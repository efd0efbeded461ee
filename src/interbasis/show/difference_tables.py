"""Tables of the difference between two models."""

import math

from interbasis.analysis.differences.records import ChangedDirection, Difference, DifferenceSeries, Share
from interbasis.analysis.features.records import TokenExample
from interbasis.show.declared_tables import DeclaredTables
from interbasis.show.sentences import read_texts
from interbasis.show.tables import MISSING, Parts, ResultTable, result_tables

HEADS_SHOWN = 8
"""Heads shown, those that changed most."""
DIRECTIONS_SHOWN = 2
"""Directions shown of each section and side."""
EXAMPLES_SHOWN = 3
"""Tokens shown of each direction."""
TEXTS: dict[str, str] = read_texts("difference_sentences.toml")["tables"]
TABLES = DeclaredTables("result_tables.toml")
METRICS = {
    "lib": "CᵀC of the first model's run",
    "inverse covariance": "the inverse covariance of the first model's outputs",
}


@result_tables.register
def difference_tables(result: Difference) -> Parts:
    """Sections on the same input, depth, heads, and directions with their tokens."""
    changed = {name: section for name, section in result.sections.items() if section.changed}
    head = f"\n{result.first.name} / {result.second.name} · {result.data.samples:,} samples"
    if not changed:
        return [head, _total_line(result)]
    rows = [(s.name, share_text(s.outputs), share_text(s.jacobian)) for s in changed.values()]
    count = len(result.sections) - len(changed)
    same = f" {count} sections do not differ." if count else ""
    parts: Parts = [
        head,
        TABLES("changed_sections", rows, along=result.along, metric=METRICS[result.metric], same=same),
        TABLES("depth", [row for row in result.layers.items() if row[1].total or row[1].arising]),
    ]
    heads = [(s.name, h) for s in changed.values() for h in s.heads[:HEADS_SHOWN] if h.total > 0]
    if heads:
        parts.append(TABLES("changed_heads", heads))
    directions = [
        (section.name, kind, direction.share, active_tokens(direction))
        for section in changed.values()
        for kind, found in (
            ("read", section.reading_directions),
            ("treated", section.input_directions),
            ("put out", section.output_directions),
        )
        for direction in found[:DIRECTIONS_SHOWN]
    ]
    return [*parts, TABLES("changed_directions", directions), _total_line(result)]


@result_tables.register
def series_tables(result: DifferenceSeries) -> Parts:
    """Share of the Jacobian that differs, section by step."""
    names = list(result.differences[0].sections)
    rows = [
        (difference.second.name, *(_number(difference.sections[name].jacobian.value) for name in names))
        for difference in result.differences
    ]
    return [ResultTable.from_cells("Series", ("model", *names), rows, TEXTS["series"])]


def _total_line(result: Difference) -> str:
    leading = result.leading
    if leading is None:
        return "The two models compute the same on these data in every section."
    return f"The largest difference arises in {result.sections[leading].name}."


def share_text(share: Share) -> str:
    """A share with its standard error, where there is one."""
    return _number(share.value) + ("" if math.isnan(share.error) else f" ± {share.error:.1g}")


def _number(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.3g}"


def active_tokens(direction: ChangedDirection) -> str:
    """The tokens where a direction is most active, or the samples."""
    shown = []
    for example in direction.examples[:EXAMPLES_SHOWN]:
        if isinstance(example, TokenExample):
            before = example.tokens[max(0, example.active - 3) : example.active]
            space = " " if all(map(str.isdecimal, before)) else ""  # numbers do not say where they begin
            shown.append(f"{space.join(before)}{space if before else ''}[{example.tokens[example.active]}]")
        else:
            shown.append(f"sample {example.sample}")
    return " · ".join(shown).replace("\n", "↵")
