"""The sections of a model as a table."""

from collections.abc import Iterator

from rich.console import RenderableType

from interbasis.network.summary import NetworkSummary
from interbasis.terminal.tables import make_table


def section_tables(summary: NetworkSummary, name: str) -> Iterator[RenderableType]:
    """What comes before the first node layer, a row per section, and what follows the last."""
    yield f"{name}: {summary.family}, {len(summary.sections)} sections"
    yield f"before the first node layer: {summary.before}"
    rows = make_table("Sections", "from", "to", "coordinates", "positions", "core", "Jacobians")
    for section in summary.sections:
        widths = f"{section.inputs} → {section.outputs}"
        rows.add_row(section.source, section.target, widths, section.grid, section.core, section.cost)
    yield rows
    for step in summary.after:
        yield f"after the last node layer: {step}"
