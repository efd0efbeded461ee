"""Which features and edges of a graph a picture shows: plain data, before anything is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.runtime.errors import InterbasisError

CARRIED = 0.99
"""Share of a section's Ê² whose edges are drawn where nobody says which are needed."""


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


def select(
    graph: InteractionGraph,
    *,
    top: int = 20,
    needed: Sequence[Tensor] | None = None,
    labels: Mapping[str, Mapping[int, str]] | None = None,
    modules: Sequence[Sequence[int]] | None = None,
    layers: tuple[int, int] | None = None,
    merge_output: bool | None = None,
) -> Selection:
    """The first ``top`` features of each layer and the edges between them that count.

    An edge counts if ``needed`` (a mask per section, from the ablation) holds it, or else if it is among the
    largest that carry 99 % of its section's Ê². Outputs that were not rotated become one node, or as
    ``merge_output`` says; its edges are the norms (Σ_i Ê_ij²)^½ over the edges that count. ``layers`` are the
    first and last layer shown.
    """
    first, last = layers or (0, len(graph.layers) - 1)
    if not graph.edges or top < 1 or not 0 <= first < last < len(graph.layers):
        raise InterbasisError(
            f"expected a graph with edges, at least one feature per layer and two layers of "
            f"{len(graph.layers)}; received {len(graph.edges)} sections, top={top}, layers {first} to {last}"
        )
    if needed is not None and [m.shape for m in needed] != [e.shape for e in graph.edges]:
        raise InterbasisError("the masks of needed edges do not have the shapes of the graph's edges")
    masks = [_counts(graph, k, None if needed is None else needed[k]) for k in range(len(graph.edges))]
    if merge_output is None:
        merge_output = graph.layers[-1].identity or not graph.layers[-1].constant
    merged = merge_output and last == len(graph.layers) - 1
    columns = [
        _column(graph, k, top, masks, labels or {}, None if modules is None else modules[k])
        for k in range(first, last + 1)
    ]
    if merged:
        count = graph.layers[last].features - _first(graph, last)
        columns[-1] = (Node(last, None, f"all {count:,}\ntogether", -1, True),)
    sections = [
        _edges(graph, k, columns[k - first], columns[k - first + 1], masks[k]) for k in range(first, last)
    ]
    return Selection(
        tuple(layer.name for layer in graph.layers[first : last + 1]),
        tuple(columns),
        tuple(graph.layers[k].features - _first(graph, k) for k in range(first, last + 1)),
        tuple(sections),
        tuple(int(masks[k].sum()) for k in range(first, last)),
    )


def _counts(graph: InteractionGraph, k: int, needed: Tensor | None) -> Tensor:  # bool [out, in]
    edges = graph.edges[k].double()
    inner = torch.zeros_like(edges, dtype=torch.bool)
    inner[_first(graph, k + 1) :, _first(graph, k) :] = True
    if needed is not None:
        return needed.bool() & inner & (edges > 0)
    values, order = (edges * inner).flatten().sort(descending=True)
    shares = values.square().cumsum(0) / values.square().sum().clamp_min(1e-300)
    kept = torch.zeros(edges.numel(), dtype=torch.bool)
    kept[order[: int((shares < CARRIED).sum()) + 1]] = True
    return kept.view(edges.shape) & inner & (edges > 0)


def _column(
    graph: InteractionGraph,
    k: int,
    top: int,
    masks: list[Tensor],
    labels: Mapping[str, Mapping[int, str]],
    modules: Sequence[int] | None,
) -> tuple[Node, ...]:
    layer, start = graph.layers[k], _first(graph, k)
    texts = labels.get(layer.name, {})
    apart = range(start, start + layer.isolated)  # a layer norm's variance
    texts = dict(texts) | {j: " · ".join(filter(None, ["variance", texts.get(j)])) for j in apart}
    used = torch.zeros(layer.features, dtype=torch.bool)
    if k < len(masks):
        used |= masks[k].any(0)
    if k > 0:
        used |= masks[k - 1].any(1)
    return tuple(
        Node(k, j, texts.get(j, ""), -1 if modules is None else int(modules[j]), bool(used[j]))
        for j in range(start, min(start + top, layer.features))
    )


def _edges(
    graph: InteractionGraph, k: int, sources: Sequence[Node], targets: Sequence[Node], mask: Tensor
) -> tuple[Edge, ...]:
    strengths = graph.edges[k].double() * mask
    if targets[0].index is None:
        strengths = strengths.norm(dim=0, keepdim=True)
        rows = [0]
    else:
        rows = [node.index for node in targets if node.index is not None]
    found = []
    for b, row in enumerate(rows):
        for a, node in enumerate(sources):
            value = strengths[row, node.index].item() if node.index is not None else 0.0
            if value > 0:
                found.append(Edge(a, b, value))
    return tuple(found)


def _first(graph: InteractionGraph, layer: int) -> int:
    return 1 if graph.layers[layer].constant else 0
