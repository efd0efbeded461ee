"""Layers and sections of a run as rows: what every reader shows, joined by name in one place.

Pages and files hold the strongest edges only, up to a limit that is shared out among the sections; every
section says what was left out, and how much of Ê² the rest carries. Edges of the constant are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.ablation.records import Curve, EdgesRequired, NodesRequired
from interbasis.analysis.features.records import Feature, FeatureExamples
from interbasis.analysis.run_record import RunRecord
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis

EDGE_LIMIT = 100_000
"""Edges that a page or a file holds of a run; default of all readers."""


@dataclass(frozen=True, eq=False)
class LayerRows:
    """One node layer and what is known about it. What was not made is None, or empty."""

    index: int
    basis: LayerBasis
    outputs: bool
    """Whether its features are the network's outputs themselves."""
    nodes_required: NodesRequired | None
    modules: tuple[int, ...] | None
    """The module of every feature; −1 for a feature in none."""
    features: dict[int, Feature]
    examples: dict[int, FeatureExamples]

    @property
    def name(self) -> str:
        return self.basis.name


@dataclass(frozen=True, eq=False)
class SectionRows:
    """The strongest edges of one section, in descending order."""

    index: int
    source: str
    target: str
    nonzero: int
    """Edges above 0."""
    sum_of_squares: float
    """Σ Ê² over all edges."""
    held_share: float
    """Share of it in the edges that are held."""
    sources: Tensor  # [held]
    """Features, as indices into their layers."""
    targets: Tensor  # [held]
    values: Tensor  # [held], Ê
    constant: Tensor | None  # [features_out]
    """Edges of the constant, one for each target."""
    into_all: Tensor  # [features_in]
    """(Σ_i Ê_ij²)^½ over all targets i, one for each source j; 0 for the constant."""
    errors: Tensor | None
    """Standard errors of Ê where it was estimated."""
    needed: Tensor | None
    """Whether the ablation requires the edge; None where the section was not ablated."""
    edges_required: EdgesRequired | None
    curve: Curve | None

    @property
    def name(self) -> str:
        return f"{self.source} → {self.target}"

    @property
    def held(self) -> int:
        return len(self.values)


def is_output(graph: InteractionGraph, k: int) -> bool:
    """Whether the features of layer k are the network's outputs themselves."""
    layer = graph.layers[k]
    return k + 1 == len(graph.layers) and (layer.identity or not layer.constant)


def layer_rows(record: RunRecord) -> list[LayerRows]:
    """All node layers with what is known about them, by their names."""
    modules = record.modules.layers if record.modules else {}
    features = record.features.layers if record.features else {}
    examples = record.examples.layers if record.examples else {}
    labels = record.labels.layers if record.labels else {}
    more = record.labels.examples if record.labels else {}
    nodes = record.ablation.layers if record.ablation else {}
    return [
        LayerRows(
            index=k,
            basis=layer,
            outputs=is_output(record.graph, k),
            nodes_required=nodes.get(layer.name),
            modules=modules.get(layer.name),
            features={
                j: feature
                for described in (labels, features)
                if layer.name in described
                for j, feature in described[layer.name].by_index().items()
            },
            examples={row.index: row for shown in (more, examples) for row in shown.get(layer.name, ())},
        )
        for k, layer in enumerate(record.graph.layers)
    ]


def section_rows(record: RunRecord, limit: int | None = EDGE_LIMIT) -> list[SectionRows]:
    """All sections with at most ``limit`` edges together (None for all), by the names of their sources."""
    graph = record.graph
    sizes = [int((graph.inner_edges(k) > 0).sum()) for k in range(len(graph.edges))]
    counts = sizes if limit is None else share_out(limit, sizes)
    return [_section(record, k, count) for k, count in enumerate(counts)]


def share_out(limit: int, sizes: Sequence[int]) -> list[int]:
    """A limit shared out: small sections keep all they have, the others equal parts of the rest."""
    parts, left = [0] * len(sizes), limit
    for done, k in enumerate(sorted(range(len(sizes)), key=lambda k: sizes[k])):
        parts[k] = min(sizes[k], left // (len(sizes) - done))
        left -= parts[k]
    return parts


def _section(record: RunRecord, k: int, count: int) -> SectionRows:
    graph = record.graph
    source, target = graph.layers[k], graph.layers[k + 1]
    inner = graph.inner_edges(k).double()
    nonzero, squares = int((inner > 0).sum()), inner.square()
    values, places = inner.flatten().topk(count)
    columns = max(inner.shape[1], 1)
    targets = torch.div(places, columns, rounding_mode="floor") + int(target.constant)
    sources = places % columns + int(source.constant)
    total = squares.sum().item()
    mask = record.edge_masks.get(source.name)
    ablated = record.ablation.sections if record.ablation else {}
    curve = record.curves.curves.sections.get(source.name) if record.curves else None
    if curve:  # runs of version 0.1 may count more edges than there are
        counts = tuple(min(count, inner.numel()) for count in curve.counts)
        curve = curve.model_copy(update={"counts": counts})
    return SectionRows(
        index=k,
        source=source.name,
        target=target.name,
        nonzero=nonzero,
        sum_of_squares=total,
        held_share=values.square().sum().item() / total if count < nonzero else 1.0,
        sources=sources,
        targets=targets,
        values=values,
        constant=graph.edges[k][:, 0] if source.constant else None,
        into_all=torch.cat([inner.new_zeros(source.first_feature), squares.sum(0).sqrt()]),
        errors=graph.edge_errors[k][targets, sources].double() if graph.edge_errors else None,
        needed=None if mask is None else mask[targets, sources].bool(),
        edges_required=ablated.get(source.name),
        curve=curve,
    )
