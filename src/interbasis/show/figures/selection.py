"""Selection of the features and edges of a graph that a picture shows, before anything is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis

SHARE_OF_SQUARES = 0.99
"""Share of a section's Ê² whose edges are drawn where it is not known which are needed."""


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
    """The parts of a graph that are drawn: a column of nodes per layer, edges between neighbours."""

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


def select(
    graph: InteractionGraph,
    *,
    top: int = 20,
    needed: Mapping[str, Tensor] | None = None,
    labels: Mapping[str, Mapping[int, str]] | None = None,
    modules: Mapping[str, Sequence[int]] | None = None,
    layers: tuple[int, int] | None = None,
    merge_output: bool | None = None,
) -> Selection:
    """Select the first features of each layer and the edges between them that count.

    An edge counts if the ablation requires it, or else if it is among the largest that carry 99 % of its
    section's Ê². The edges of outputs that are drawn as one node are the norms (Σ_i Ê_ij²)^½ over the edges
    that count. The arguments are those of `interaction_graph`.
    """
    first, last = layers or (0, len(graph.layers) - 1)
    if not graph.edges or top < 1 or not 0 <= first < last < len(graph.layers):
        raise InterbasisError(
            f"expected a graph with edges, at least one feature per layer and two layers of "
            f"{len(graph.layers)}; received {len(graph.edges)} sections, top={top}, layers {first} to {last}"
        )
    needed = needed or {}
    shapes = dict(zip(graph.section_names, (edges.shape for edges in graph.edges), strict=True))
    if any(mask.shape != shapes.get(name) for name, mask in needed.items()):
        raise InterbasisError("the masks of needed edges do not have the shapes of the graph's edges")
    masks = [_counting_edges(graph, k, needed.get(name)) for k, name in enumerate(graph.section_names)]
    if merge_output is None:
        merge_output = graph.layers[-1].identity or not graph.layers[-1].constant
    shown, sections = graph.layers[first : last + 1], range(first, last)
    columns = []
    for k, layer in enumerate(shown, first):
        used = torch.zeros(layer.features, dtype=torch.bool)
        if k < len(masks):
            used |= masks[k].any(0)
        if k > 0:
            used |= masks[k - 1].any(1)
        texts, assignment = (labels or {}).get(layer.name, {}), (modules or {}).get(layer.name)
        columns.append(_column(layer, k, texts, assignment, used)[:top])
    features = tuple(layer.features - layer.first_feature for layer in shown)
    if merge_output and last == len(graph.layers) - 1:
        columns[-1] = (Node(last, None, f"all {features[-1]:,}\ntogether", -1, True),)
    return Selection(
        tuple(layer.name for layer in shown),
        tuple(columns),
        features,
        tuple(
            _edges(graph.edges[k].double() * masks[k], *columns[k - first : k - first + 2]) for k in sections
        ),
        tuple(int(masks[k].sum()) for k in sections),
        tuple(graph.layers[k].name in needed for k in sections),
    )


def _counting_edges(graph: InteractionGraph, k: int, needed: Tensor | None) -> Tensor:  # bool [out, in]
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


def _column(
    layer: LayerBasis, k: int, texts: Mapping[int, str], modules: Sequence[int] | None, used: Tensor
) -> tuple[Node, ...]:
    start = layer.first_feature
    isolated = range(start, start + layer.isolated)  # a layer norm's variance
    texts = dict(texts) | {j: " · ".join(filter(None, ["variance", texts.get(j)])) for j in isolated}
    return tuple(
        Node(k, j, texts.get(j, ""), -1 if modules is None else int(modules[j]), bool(used[j]))
        for j in range(start, layer.features)
    )


def _edges(strengths: Tensor, sources: Sequence[Node], targets: Sequence[Node]) -> tuple[Edge, ...]:
    """Edges above 0 between the nodes of two columns; to outputs as one node, norms over the outputs."""
    if is_merged(targets):
        strengths = strengths.norm(dim=0, keepdim=True)
    rows = [node.index or 0 for node in targets]
    values = strengths[rows][:, [node.index or 0 for node in sources]].tolist()
    return tuple(
        Edge(a, b, value) for b, row in enumerate(values) for a, value in enumerate(row) if value > 0
    )
