"""Nodes and edges of a run as plain rows, which every export writes in its own way.

Large graphs have more edges than other programs open, so each section keeps its strongest ones only, up to a
limit for the whole graph; what was left out, and how much of Ê² it carries, goes into every file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from interbasis.analysis.dictionaries.ablation import DictionaryAblation
from interbasis.analysis.dictionaries.descriptions import DescriptionsResult, feature_texts
from interbasis.analysis.run_record import read_run
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import load_result
from interbasis.analysis.summary import summarise
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Basis, Method, Record
from interbasis.dictionaries.graph import DictionaryBuildConfig, is_dictionary_graph, load_identified_graph
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
    frequency: float | None = None
    """Share of the tokens at which a dictionary's feature is active; None for a feature of a basis."""


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
    mean: float | None = None
    """Mean with its sign, between dictionaries; None between bases."""


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
    basis: Basis | Literal["dictionary"]
    edge_method: Method | None
    samples: dict[str, int]
    versions: dict[str, str]
    settings: BuildConfig | DictionaryBuildConfig
    model_fingerprint: str
    dictionaries: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the dictionary at every place, of which features have the numbers."""


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
    if is_dictionary_graph(run):
        return dictionary_rows(Path(run), limit)
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


def dictionary_rows(folder: Path, limit: int | None) -> PlainGraph:
    """The nodes and at most ``limit`` edges of a graph between dictionaries; dead features are left out."""
    graph, digest = load_identified_graph(folder)
    found = load_result(folder, DescriptionsResult, digest=digest)
    modules = load_result(folder, ModulesResult, digest=digest)
    ablation = load_result(folder, DictionaryAblation, digest=digest)
    texts = {} if found is None else feature_texts(found)
    members = {} if modules is None else modules.layers
    required = {} if ablation is None else {name: pair.count for name, pair in ablation.pairs.items()}
    nodes = []
    for k, (layer, statistics) in enumerate(zip(graph.header.layers, graph.statistics, strict=True)):
        frequency = statistics.frequency.tolist()
        for j in statistics.frequency.nonzero()[:, 0].tolist():
            label = encodable(texts.get((layer.place, j), "")) or None
            module = members[layer.place][j] if layer.place in members else None
            nodes.append(
                NodeRow(f"{k}_{j}", layer.place, k, j, False, label, None, None, module, frequency[j])
            )
    rows: list[EdgeRow] = []
    notes: list[SectionNote] = []
    for k, (pair, edges) in enumerate(zip(graph.header.pairs, graph.edges, strict=True)):
        held = pair.stored if limit is None else min(pair.stored, limit // len(graph.edges))
        errors = [None] * held if edges.error is None else edges.error[:held].tolist()
        count = required.get(pair.source)
        columns = (column[:held].tolist() for column in (edges.source, edges.target, edges.rms, edges.mean))
        for place, (j, i, strength, mean, error) in enumerate(zip(*columns, errors, strict=True)):
            needed = None if count is None else place < count
            rows.append(EdgeRow(f"{k}_{j}", f"{k + 1}_{i}", k, strength, error, needed, mean))
        squares = edges.rms.double().square()
        share = (squares[:held].sum() / squares.sum().clamp_min(1e-300)).item() * pair.stored_share
        notes.append(
            SectionNote(
                source=pair.source, target=pair.target, edges=pair.nonzero, written=held,
                smallest_written=edges.rms[held - 1].item() if held else None, share_of_squares=share,
            )
        )  # fmt: skip
    origin = graph.provenance
    about = About(
        model=origin.model, family=origin.family, basis="dictionary", settings=graph.header.config,
        edge_method=graph.header.config.edge_method, samples=origin.samples, versions=origin.versions,
        model_fingerprint=origin.model_fingerprint,
        dictionaries={layer.place: layer.digest or layer.path for layer in graph.header.layers},
    )  # fmt: skip
    return PlainGraph(tuple(nodes), tuple(rows), tuple(notes), about)


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
