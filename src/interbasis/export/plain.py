"""Nodes and edges of a run as plain rows, which every export writes in its own way.

Large graphs have more edges than other programs open, so each section keeps its strongest ones only, up to a
limit for the whole graph; what was left out, and how much of Ê² it carries, goes into every file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load
from interbasis.run.results import load_result, load_tensors
from interbasis.run.summary import summarise
from interbasis.runtime.errors import InterbasisError

EDGE_LIMIT = 100_000
"""Edges that one file holds unless another number is asked for."""
FEW = 6
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
    """Whether the ablation found it to be needed; None without an ablation."""


@dataclass(frozen=True)
class SectionNote:
    """What of a section's edges a file holds. The constant's edges are left out and not counted."""

    source: str
    target: str
    edges: int
    """Above 0."""
    written: int
    smallest_written: float | None
    share_of_squares: float
    """Of the section's Σ Ê² in the edges that are written."""


@dataclass(frozen=True)
class PlainGraph:
    """A run as rows."""

    nodes: tuple[NodeRow, ...]
    edges: tuple[EdgeRow, ...]
    sections: tuple[SectionNote, ...]
    about: dict[str, Any]
    """Model, basis, data and settings, as JSON holds them."""

    @property
    def left_out(self) -> str:
        """One sentence about what is not in the file."""
        short = [s for s in self.sections if s.written < s.edges]
        if not short:
            return "All edges above 0 are here, but for those of the constant feature."
        shown = short if len(short) <= FEW else [min(short, key=lambda section: section.share_of_squares)]
        parts = ", ".join(
            f"{s.source} → {s.target}: {s.written:,} of {s.edges:,} with {_percent(s.share_of_squares)} of Ê²"
            for s in shown
        )
        if len(short) > FEW:
            every = sum(section.edges for section in self.sections)
            parts = f"{len(self.edges):,} of {every:,}; the smallest share is that of {parts}"
        return f"Only the strongest edges are here ({parts}); those of the constant feature are left out."

    def notes(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "left_out": self.left_out,
            "sections": [asdict(section) for section in self.sections],
        }


def _percent(share: float) -> str:
    return f"{share:.2%}" if share < 0.9999 else "over 99.99%"


def plain_graph(run: str | Path, limit: int | None = EDGE_LIMIT) -> PlainGraph:
    """The nodes and at most ``limit`` edges of a run on disk (None for all), with what is known."""
    graph = load(run)
    masks = load_tensors(run, "ablation")
    needed = [masks.get(f"edge_mask.{k}") for k in range(len(graph.edges))]
    return rows_of(graph, load_result(run, "features"), load_result(run, "modules"), needed, limit)


def rows_of(
    graph: InteractionGraph,
    features: Mapping[str, Any] | None = None,
    modules: Mapping[str, Any] | None = None,
    needed: Sequence[Tensor | None] = (),
    limit: int | None = EDGE_LIMIT,
) -> PlainGraph:
    """The same of a graph in memory and results about it."""
    if limit is not None and limit < 1:
        raise InterbasisError(f"expected to write at least one edge, received a limit of {limit}")
    sizes = [int((_inner(graph, k) > 0).sum()) for k in range(len(graph.edges))]
    parts = sizes if limit is None else shares(limit, sizes)
    edges, notes = [], []
    for k, count in enumerate(parts):
        mask = needed[k] if k < len(needed) else None
        found, note = _section(graph, k, count, sizes[k], mask)
        edges += found
        notes.append(note)
    summary = summarise(graph)
    names = "model", "family", "basis", "edge_method", "samples", "versions"
    about = {name: summary[name] for name in names}
    about |= {"settings": graph.config.model_dump(mode="json")}
    about |= {"model_fingerprint": graph.provenance.model_fingerprint}
    return PlainGraph(tuple(_nodes(graph, features, modules)), tuple(edges), tuple(notes), about)


def shares(limit: int, sizes: Sequence[int]) -> list[int]:
    """A limit shared out: small sections keep all they have, the others equal parts of the rest."""
    result, left = [0] * len(sizes), limit
    for done, k in enumerate(sorted(range(len(sizes)), key=lambda k: sizes[k])):
        result[k] = min(sizes[k], left // (len(sizes) - done))
        left -= result[k]
    return result


def _encodable(text: str) -> str:
    """Half a surrogate pair, as tokens may hold, has no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def node_id(layer: int, feature: int) -> str:
    return f"{layer}_{feature}"


def _nodes(
    graph: InteractionGraph, features: Mapping[str, Any] | None, modules: Mapping[str, Any] | None
) -> list[NodeRow]:
    labels = {
        (layer["name"], feature["index"]): _encodable(feature.get("label") or "")
        for layer in (features or {}).get("layers", [])
        for feature in layer["features"]
    }
    groups = {layer["name"]: layer["assignment"] for layer in (modules or {}).get("layers", [])}
    rows = []
    for k, layer in enumerate(graph.layers):
        values, errors = (
            None if numbers is None else numbers.double().tolist()
            for numbers in (layer.eigenvalues, layer.eigenvalue_errors)
        )
        group = groups.get(layer.name)
        for j in range(layer.features):
            constant = layer.constant and j == 0
            label = "constant" if constant else labels.get((layer.name, j)) or None
            rows.append(
                NodeRow(
                    node_id(k, j), layer.name, k, j, constant, label,
                    None if values is None else values[j], None if errors is None else errors[j],
                    None if group is None else int(group[j]),
                )
            )  # fmt: skip
    return rows


def _section(
    graph: InteractionGraph, k: int, count: int, positive: int, needed: Tensor | None
) -> tuple[list[EdgeRow], SectionNote]:
    inner = _inner(graph, k).double()
    first_out, first_in = _first(graph, k + 1), _first(graph, k)
    values, places = inner.flatten().topk(count)
    rows = torch.div(places, max(inner.shape[1], 1), rounding_mode="floor") + first_out
    columns = places % max(inner.shape[1], 1) + first_in
    errors = graph.edge_errors[k][rows, columns].tolist() if graph.edge_errors else [None] * count
    marks = needed[rows, columns].tolist() if needed is not None else [None] * count
    found = [
        EdgeRow(node_id(k, j), node_id(k + 1, i), k, value, error, mark)
        for i, j, value, error, mark in zip(
            rows.tolist(), columns.tolist(), values.tolist(), errors, marks, strict=True
        )
    ]
    total = inner.square().sum().item()
    share = values.square().sum().item() / total if total > 0 and count < positive else 1.0
    smallest = values[-1].item() if count else None
    names = graph.layers[k].name, graph.layers[k + 1].name
    return found, SectionNote(*names, positive, count, smallest, share)


def _inner(graph: InteractionGraph, k: int) -> Tensor:
    """A section's edges without the constant's, [features_out, features_in]."""
    return graph.edges[k][_first(graph, k + 1) :, _first(graph, k) :]


def _first(graph: InteractionGraph, layer: int) -> int:
    return 1 if graph.layers[layer].constant else 0
