"""The sections of a model as a table."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from interbasis.network.summary import NetworkSummary
from interbasis.show.terminal.tables import Column, make_table


def section_tables(summary: NetworkSummary, name: str) -> Iterator[RenderableType]:
    """What comes before the first node layer, a row per section, and what follows the last."""
    yield Text(f"{name}: {summary.family}, {len(summary.sections)} sections")
    yield Text(f"before the first node layer: {summary.before}")
    texts = (Column(name, text=True) for name in ("positions", "core", "Jacobians"))
    table = make_table("Sections", "from", "coordinates", *texts)
    for section in summary.sections:
        widths = f"{section.inputs} → {section.outputs}"
        named = [section.source, *([section.hook] if section.hook else [])]
        table.add_row("\n".join(named), widths, section.grid, section.core, section.cost)
    yield table
    yield Text(f"to: {summary.sections[-1].target}; every section ends where the next begins")
    for step in summary.after:
        yield Text(f"after the last node layer: {step}")
