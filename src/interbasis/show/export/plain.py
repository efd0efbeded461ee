"""Nodes and edges of a run as plain rows, which every export writes in its own way.

Large graphs have more edges than other programs open, so each section keeps its strongest ones only, up to a
limit for the whole graph; what was left out, and how much of Ê² it carries, goes into every file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from interbasis.analysis.run_record import read_run
from interbasis.analysis.summary import summarise
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Basis, Method, Record
from interbasis.graph.settings import BuildConfig
from interbasis.show.html import encodable
from interbasis.show.rows import EDGE_LIMIT, LayerRows, SectionRows, layer_rows, section_rows

MAX_SECTIONS_NAMED = 6
"""Sections that a sentence can name."""


@dataclass(frozen=True)
class NodeRow:
    """A feature. What is not known is None."""

    id: str
    layer: str
    layer_index: int
    feature: int
    """Index in the layer; 0 is the constant where the layer has one."""
    constant: bool
    label: str | None
    eigenvalue: float | None
    eigenvalue_error: float | None
    """Standard error where Λ was sampled."""
    module: int | None
    """None without modules, −1 for a feature in none."""


@dataclass(frozen=True)
class EdgeRow:
    """An interaction."""

    source: str
    target: str
    section: int
    strength: float
    """Ê, root mean square over the data; it has no sign."""
    error: float | None
    """Standard error where Ê was estimated."""
    needed: bool | None
    """Whether the ablation requires it; None where its section was not ablated."""


class SectionNote(Record):
    """Edges of a section that a file holds. The constant's edges are left out and not counted."""

    source: str
    target: str
    edges: int
    """Above 0."""
    written: int
    smallest_written: float | None
    share_of_squares: float
    """Share of the section's Σ Ê² in the edges that are written."""

    @property
    def sentence(self) -> str:
        share = f"{self.share_of_squares:.2%}" if self.share_of_squares < 0.9999 else "over 99.99%"
        return f"{self.source} → {self.target}: {self.written:,} of {self.edges:,} with {share} of Ê²"


class About(Record):
    """Model, basis, data and settings."""

    model: str
    family: str
    basis: Basis
    edge_method: Method | None
    samples: dict[str, int]
    versions: dict[str, str]
    settings: BuildConfig
    model_fingerprint: str


class FileNotes(Record):
    """Notes that go into every file beside nodes and edges."""

    about: About
    left_out: str
    sections: tuple[SectionNote, ...]


@dataclass(frozen=True)
class PlainGraph:
    """A run as rows."""

    nodes: tuple[NodeRow, ...]
    edges: tuple[EdgeRow, ...]
    sections: tuple[SectionNote, ...]
    about: About

    @property
    def left_out(self) -> str:
        """One sentence about what is not in the file."""
        short = [section for section in self.sections if section.written < section.edges]
        if not short:
            return "All edges above 0 are here, but for those of the constant feature."
        if len(short) <= MAX_SECTIONS_NAMED:
            parts = ", ".join(section.sentence for section in short)
        else:
            every = sum(section.edges for section in self.sections)
            worst = min(short, key=lambda section: section.share_of_squares)
            parts = f"{len(self.edges):,} of {every:,}; the smallest share is that of {worst.sentence}"
        return f"Only the strongest edges are here ({parts}); those of the constant feature are left out."

    def notes(self) -> FileNotes:
        return FileNotes(about=self.about, left_out=self.left_out, sections=self.sections)


def plain_graph(run: str | Path, limit: int | None = EDGE_LIMIT) -> PlainGraph:
    """The nodes and at most ``limit`` edges of a run on disk (None for all), with what is known."""
    if limit is not None and limit < 1:
        raise InterbasisError(f"expected to write at least one edge, received a limit of {limit}")
    record = read_run(run, max_traces=0)
    graph, summary = record.graph, summarise(record.graph)
    sections = section_rows(record, limit)
    about = About(
        **summary.model_dump(include={"model", "family", "basis", "edge_method", "samples", "versions"}),
        settings=graph.config,
        model_fingerprint=graph.provenance.model_fingerprint,
    )
    notes = tuple(
        SectionNote(
            source=section.source,
            target=section.target,
            edges=section.nonzero,
            written=section.held,
            smallest_written=section.values[-1].item() if section.held else None,
            share_of_squares=section.held_share,
        )
        for section in sections
    )
    nodes = tuple(node for layer in layer_rows(record) for node in _nodes(layer))
    return PlainGraph(nodes, tuple(edge for section in sections for edge in _edges(section)), notes, about)


def _nodes(layer: LayerRows) -> Iterator[NodeRow]:
    basis, k = layer.basis, layer.index
    unknown = [None] * basis.features
    values, errors = (
        unknown if numbers is None else numbers.double().tolist()
        for numbers in (basis.eigenvalues, basis.eigenvalue_errors)
    )
    modules = layer.modules or unknown
    for j in range(basis.features):
        constant = basis.constant and j == 0
        label = "constant" if constant else layer.features[j].label if j in layer.features else ""
        yield NodeRow(
            f"{k}_{j}", layer.name, k, j, constant, encodable(label) or None, values[j], errors[j], modules[j]
        )


def _edges(section: SectionRows) -> Iterator[EdgeRow]:
    k, unknown = section.index, [None] * section.held
    errors = unknown if section.errors is None else section.errors.tolist()
    needed = unknown if section.needed is None else section.needed.tolist()
    columns = section.sources.tolist(), section.targets.tolist(), section.values.tolist(), errors, needed
    for j, i, strength, error, mark in zip(*columns, strict=True):
        yield EdgeRow(f"{k}_{j}", f"{k + 1}_{i}", k, strength, error, mark)
