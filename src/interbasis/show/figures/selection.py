"""Which features and edges of a graph a picture shows: plain data, before anything is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph

SHARE_OF_SQUARES = 0.99
"""Share of a section's Ê² whose edges are drawn where it is not known which are needed."""


@dataclass(frozen=True, eq=False)
class GraphOptions:
    """What of a graph is drawn, and what is known about its features and edges; all by name."""

    top: int = 20
    """Features of each layer, the most important first."""
    needed: Mapping[str, Tensor] | None = None
    """The ablation's masks, by the name of the section's source layer; sections without one are drawn with
    the largest edges that carry 99 % of Ê²."""
    labels: Mapping[str, Mapping[int, str]] | None = None
    """{layer: {feature: text}}."""
    modules: Mapping[str, Sequence[int]] | None = None
    """The module of every feature (−1 for none), by layer."""
    layers: tuple[int, int] | None = None
    """The first and the last layer shown; default: all."""
    merge_output: bool | None = None
    """Draw all outputs as one node; default: where they were not rotated."""
    power: float | None = None
    """Widths of edges go with Ê to this power; default: 2, and 1 for language models, as in the paper."""
    title: str = ""


@dataclass(frozen=True)
class Node:
    """A feature that is shown, or all outputs as one."""

    layer: int
    index: int | None
    """None for the merged output."""
    label: str
    module: int
    """−1 for none."""
    needed: bool


@dataclass(frozen=True)
class Edge:
    """An edge that is shown; source and target are places in the columns."""

    source: int
    target: int
    strength: float


@dataclass(frozen=True)
class Selection:
    """What is drawn: a column of nodes per layer, edges between neighbours."""

    names: tuple[str, ...]
    columns: tuple[tuple[Node, ...], ...]
    features: tuple[int, ...]
    """All features of each layer, the constant left out."""
    sections: tuple[tuple[Edge, ...], ...]
    candidates: tuple[int, ...]
    """Edges of each section that count as needed, whether or not both ends are shown."""
    ablated: tuple[bool, ...]
    """Whether these are the edges that the ablation requires, or those that carry 99 % of Ê²."""

    def is_merged(self, k: int) -> bool:
        """Whether a column is all outputs as one node."""
        return is_merged(self.columns[k])


def is_merged(column: Sequence[Node]) -> bool:
    """Whether a column is all outputs as one node; that of a layer with nothing but a constant is empty."""
    return bool(column) and column[0].index is None


def select(graph: InteractionGraph, options: GraphOptions) -> Selection:
    """The first features of each layer and the edges between them that count.

    An edge counts if the ablation requires it, or else if it is among the largest that carry 99 % of its
    section's Ê². The edges of outputs that are drawn as one node are the norms (Σ_i Ê_ij²)^½ over the edges
    that count.
    """
    first, last = options.layers or (0, len(graph.layers) - 1)
    if not graph.edges or options.top < 1 or not 0 <= first < last < len(graph.layers):
        raise InterbasisError(
            f"expected a graph with edges, at least one feature per layer and two layers of "
            f"{len(graph.layers)}; received {len(graph.edges)} sections, top={options.top}, layers {first} "
            f"to {last}"
        )
    needed = options.needed or {}
    shapes = dict(zip(graph.section_names, (edges.shape for edges in graph.edges), strict=True))
    if any(mask.shape != shapes.get(name) for name, mask in needed.items()):
        raise InterbasisError("the masks of needed edges do not have the shapes of the graph's edges")
    masks = [_counts(graph, k, needed.get(name)) for k, name in enumerate(graph.section_names)]
    merged = options.merge_output
    if merged is None:
        merged = graph.layers[-1].identity or not graph.layers[-1].constant
    columns = [_column(graph, k, masks, options) for k in range(first, last + 1)]
    if merged and last == len(graph.layers) - 1:
        count = graph.layers[last].features - graph.layers[last].first_feature
        columns[-1] = (Node(last, None, f"all {count:,}\ntogether", -1, True),)
    sections = [
        _edges(graph, k, columns[k - first], columns[k - first + 1], masks[k]) for k in range(first, last)
    ]
    return Selection(
        tuple(layer.name for layer in graph.layers[first : last + 1]),
        tuple(columns),
        tuple(graph.layers[k].features - graph.layers[k].first_feature for k in range(first, last + 1)),
        tuple(sections),
        tuple(int(masks[k].sum()) for k in range(first, last)),
        tuple(graph.layers[k].name in needed for k in range(first, last)),
    )


def _counts(graph: InteractionGraph, k: int, needed: Tensor | None) -> Tensor:  # bool [out, in]
    edges = graph.edges[k].double()
    inner = torch.zeros_like(edges, dtype=torch.bool)
    inner[graph.layers[k + 1].first_feature :, graph.layers[k].first_feature :] = True
    if needed is not None:
        return needed.bool() & inner & (edges > 0)
    values, order = (edges * inner).flatten().sort(descending=True)
    shares = values.square().cumsum(0) / values.square().sum().clamp_min(1e-300)
    largest = torch.zeros(edges.numel(), dtype=torch.bool)
    largest[order[: int((shares < SHARE_OF_SQUARES).sum()) + 1]] = True
    return largest.view(edges.shape) & inner & (edges > 0)


def _column(graph: InteractionGraph, k: int, masks: list[Tensor], options: GraphOptions) -> tuple[Node, ...]:
    layer, start = graph.layers[k], graph.layers[k].first_feature
    texts = (options.labels or {}).get(layer.name, {})
    modules = (options.modules or {}).get(layer.name)
    apart = range(start, start + layer.isolated)  # a layer norm's variance
    texts = dict(texts) | {j: " · ".join(filter(None, ["variance", texts.get(j)])) for j in apart}
    used = torch.zeros(layer.features, dtype=torch.bool)
    if k < len(masks):
        used |= masks[k].any(0)
    if k > 0:
        used |= masks[k - 1].any(1)
    return tuple(
        Node(k, j, texts.get(j, ""), -1 if modules is None else int(modules[j]), bool(used[j]))
        for j in range(start, min(start + options.top, layer.features))
    )


def _edges(
    graph: InteractionGraph, k: int, sources: Sequence[Node], targets: Sequence[Node], mask: Tensor
) -> tuple[Edge, ...]:
    strengths = graph.edges[k].double() * mask
    if is_merged(targets):
        strengths = strengths.norm(dim=0, keepdim=True)
        rows = [0]
    else:
        rows = [node.index for node in targets if node.index is not None]
    shown = []
    for b, row in enumerate(rows):
        for a, node in enumerate(sources):
            value = strengths[row, node.index].item() if node.index is not None else 0.0
            if value > 0:
                shown.append(Edge(a, b, value))
    return tuple(shown)
