"""The interaction graph on paper: a column of features per layer, curves as wide as the edges are strong."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch
from matplotlib.path import Path
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.show.figures.style import COLOURS, FAINT, GREY, INK, fitted, new_figure, note, plain, styled

SHARE_OF_SQUARES = 0.99
"""Share of a section's Ê² whose edges are drawn where it is not known which are needed."""
ROW, BOX, BARE, GAP, MERGED = 0.17, 1.6, 0.45, 0.7, 0.65
"""Inches: a row's height, the widths of boxes with labels and without, of the space for curves, and of the
merged output."""
WIDEST, THINNEST = 4.0, 0.25
"""Points: the widest curve of every section, and what the faintest are raised to."""
OPAQUE, FAINTEST = 0.75, 0.2
"""Opacity of curves, and the part of it that those keep which would be thinner than the thinnest."""
LABEL_POINTS = 6
"""Size of the letters of labels."""


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

    @property
    def rows(self) -> int:
        return max(1, *map(len, self.columns))

    def is_merged(self, k: int) -> bool:
        """Whether a column is all outputs as one node; a layer that only has a constant has an empty one."""
        return bool(self.columns[k]) and self.columns[k][0].index is None

    def width(self, k: int) -> float:
        """Width of the boxes of a column in inches."""
        if self.is_merged(k):
            return MERGED
        room = 0.15 if any(node.module >= 0 for node in self.columns[k]) else 0.0
        return BOX if any(node.label for node in self.columns[k]) else BARE + room

    def left(self, k: int) -> float:
        """Left edge of a column."""
        return sum(self.width(before) + GAP for before in range(k))

    def height(self, k: int, row: int) -> float:
        """Middle of a box; the merged output stands in the middle of all rows."""
        return -(row + ((self.rows - 1) / 2 if self.is_merged(k) else 0.0) + 0.5) * ROW


def select(
    graph: InteractionGraph,
    *,
    top: int = 20,
    needed: Mapping[str, Tensor] | None = None,
    labels: Mapping[str, Mapping[int, str]] | None = None,
    modules: Mapping[str, Sequence[int]] | None = None,
    layers: tuple[int, int] | None = None,
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
    strengths = [graph.edges[k].double() * masks[k] for k in sections]
    if last == len(graph.layers) - 1 and (shown[-1].identity or not shown[-1].constant):
        columns[-1] = (Node(last, None, f"all {features[-1]:,}\ntogether", -1, True),)
        strengths[-1] = strengths[-1].norm(dim=0, keepdim=True)
    return Selection(
        tuple(layer.name for layer in shown),
        tuple(columns),
        features,
        tuple(map(_edges, strengths, columns, columns[1:])),
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
    """Edges above 0 between the nodes of two columns."""
    rows = [node.index or 0 for node in targets]
    values = strengths[rows][:, [node.index or 0 for node in sources]].tolist()
    return tuple(
        Edge(a, b, value) for b, row in enumerate(values) for a, value in enumerate(row) if value > 0
    )


@styled
def interaction_graph(
    graph: InteractionGraph,
    *,
    top: int = 20,
    needed: Mapping[str, Tensor] | None = None,
    labels: Mapping[str, Mapping[int, str]] | None = None,
    modules: Mapping[str, Sequence[int]] | None = None,
    layers: tuple[int, int] | None = None,
    power: float | None = None,
    title: str = "",
) -> Figure:
    """Draw the first features of every layer and the edges between them that count.

    Args:
        graph: A graph with edges.
        top: Features of each layer, the most important first.
        needed: The ablation's masks, by the name of the section's source layer; sections without one are
            drawn with the largest edges that carry 99 % of Ê².
        labels: {layer: {feature: text}}.
        modules: The module of every feature (−1 for none), by layer.
        layers: The first and the last layer shown; default: all.
        power: Widths of edges go with Ê to this power; default: 2, and 1 for language models.
        title: Written in the note below.

    Returns:
        The figure; features without an edge that counts are grey.

    Raises:
        InterbasisError: There are no edges, or layers, masks or the power do not fit the graph.
    """
    if power is None:
        power = 1.0 if graph.provenance.predicts_next else 2.0
    if not power > 0:
        raise InterbasisError(f"line widths require a power of Ê above 0, received {power}")
    shown = select(graph, top=top, needed=needed, labels=labels, modules=modules, layers=layers)
    last = len(shown.columns) - 1
    across = shown.left(last) + shown.width(last)
    figure = new_figure(across + 0.1, shown.rows * ROW + 1.3)
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_xlim(-0.02, across + 0.02)
    axes.set_ylim(-shown.rows * ROW, 2.4 * ROW)
    colours = _colours(shown)
    for k, edges in enumerate(shown.sections):
        if edges:
            axes.add_collection(_curves(shown, k, power, colours))
    for k in range(len(shown.columns)):
        _draw_column(axes, shown, k, colours)
    _add_legend(figure, shown, colours, modules is not None)
    note(figure, f"{title}." if title else "", _explanation(shown, power))
    return figure


def _curves(shown: Selection, k: int, power: float, colours: dict[int, str]) -> PathCollection:
    """All edges of a section, weak ones below strong ones."""
    edges = sorted(shown.sections[k], key=lambda edge: edge.strength)
    widths = WIDEST * (np.array([edge.strength for edge in edges]) / edges[-1].strength) ** power
    paths, shades = [], []
    for edge in edges:
        x0, y0 = shown.left(k) + shown.width(k), shown.height(k, edge.source)
        x1, y1 = shown.left(k + 1), shown.height(k + 1, edge.target)
        bent = [(x0, y0), ((2 * x0 + x1) / 3, y0), ((x0 + 2 * x1) / 3, y1), (x1, y1)]
        paths.append(Path(bent, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]))
        source, target = shown.columns[k][edge.source], shown.columns[k + 1][edge.target]
        inside = source.module == target.module or target.index is None
        shades.append(colours.get(source.module, GREY) if inside else GREY)
    drawn = PathCollection(paths, linewidths=widths.clip(THINNEST), edgecolors=shades, facecolors="none")
    drawn.set(alpha=OPAQUE * (widths / THINNEST).clip(FAINTEST, 1), gid=f"edges:{k}", zorder=1)
    return drawn


def _draw_column(axes: Axes, shown: Selection, k: int, colours: dict[int, str]) -> None:
    left, width = shown.left(k), shown.width(k)
    count, total = sum(node.index is not None for node in shown.columns[k]), shown.features[k]
    text = f"first {count} of {total:,}" if count < total else f"all {count}" if count > 1 else "1"
    text += (" features" if total > 1 else " feature") if width >= BOX else ""
    axes.text(left, 1.4 * ROW, plain(shown.names[k]), fontsize=8.5, fontweight="bold", va="bottom")
    axes.text(left, 0.4 * ROW, text if count else "", fontsize=6.5, color="#555555", va="bottom")
    for row, node in enumerate(shown.columns[k]):
        _draw_node(axes, node, left, shown.height(k, row), width, colours)


def _draw_node(axes: Axes, node: Node, x: float, y: float, width: float, colours: dict[int, str]) -> None:
    colour = colours.get(node.module, INK) if node.needed else FAINT
    height = ROW * (0.8 if node.index is not None else 2.4)
    ground = _tint(colour) if node.needed and node.module in colours else "white"
    axes.add_patch(
        FancyBboxPatch(
            (x, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.05", zorder=2,
            facecolor=ground, edgecolor=colour, linewidth=0.8, gid=f"node:{node.layer}:{node.index}",
        )
    )  # fmt: skip
    if node.index is None:
        axes.text(x + width / 2, y, node.label, ha="center", va="center", fontsize=6.5, zorder=3)
        return
    numbered = node.needed and node.module >= 0
    room = width - 0.33 - (0.06 + 0.06 * len(str(node.module)) if numbered else 0)
    ink = INK if node.needed else GREY
    words = {"va": "center_baseline", "fontsize": LABEL_POINTS, "zorder": 3, "color": ink}
    axes.text(x + 0.2, y, str(node.index), words, ha="right", fontweight="bold")
    axes.text(x + 0.26, y, fitted(node.label, room, LABEL_POINTS), words)
    if numbered:
        axes.text(x + width - 0.04, y, str(node.module), words, ha="right", style="italic")


def _colours(shown: Selection) -> dict[int, str]:
    """Colours of the modules with the most features shown; the others stay black."""
    sizes = Counter(
        node.module for column in shown.columns for node in column if node.needed and node.module >= 0
    )
    largest = sorted(module for module, _ in sizes.most_common(len(COLOURS)))
    return dict(zip(largest, COLOURS, strict=False))


def _tint(colour: str) -> tuple[float, float, float]:
    """A colour mixed with much white, for the ground of a text."""
    red, green, blue = (0.8 + 0.2 * int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


def _add_legend(figure: Figure, shown: Selection, colours: dict[int, str], grouped: bool) -> None:
    nodes = [node for column in shown.columns for node in column if node.index is not None]
    handles = [
        Patch(facecolor=_tint(colour), edgecolor=colour, label=f"module {module}")
        for module, colour in colours.items()
    ]
    if any(node.needed and node.module >= 0 and node.module not in colours for node in nodes):
        handles.append(Patch(facecolor="white", edgecolor=INK, label="smaller module, by number"))
    if grouped and any(node.needed and node.module < 0 for node in nodes):
        handles.append(Patch(facecolor="white", edgecolor=INK, label="in no module"))
    if any(not node.needed for node in nodes):
        handles.append(Patch(facecolor="white", edgecolor=FAINT, label="no edge that counts"))
    if handles:
        columns = min(len(handles), 2 * len(shown.columns))
        figure.legend(handles=handles, loc="outside upper left", ncols=columns)


def _explanation(shown: Selection, power: float) -> str:
    strength = {1.0: "Ê", 2.0: "Ê²"}.get(power, f"Ê to the {power:g}")
    kind = largest = f"the largest edges that carry {SHARE_OF_SQUARES:.0%} of a section's Ê²"
    if any(shown.ablated):
        kind = "the edges needed according to the ablation"
        whole = [shown.names[k] for k, ablated in enumerate(shown.ablated) if not ablated]
        kind += f" (from {', '.join(whole)}, which was not ablated, {largest})" if whole else ""
    counts = []
    for k, edges in enumerate(shown.sections):
        drawn, total = len(edges), shown.candidates[k]
        number = f"{drawn:,} of {total:,}" if drawn < total else f"all {total:,}"
        number = f"{total:,}, added up over the outputs" if shown.is_merged(k + 1) else number
        counts.append(f"{shown.names[k]} → {shown.names[k + 1]} {number}")
    grouped = any(node.module >= 0 for column in shown.columns for node in column)
    return (
        f"Features from the most important downwards. Drawn are {kind}, between the features shown: "
        f"{'; '.join(counts)}. Widths go with {strength}; the largest of each section is as wide as that of "
        "the others, and hairlines are the fainter the weaker they are."
        + (" Small number at the right of a box: its module." if grouped else "")
    )
