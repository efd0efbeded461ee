"""The interaction graph on paper: a column of features per layer, curves as wide as the edges are strong."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch
from matplotlib.path import Path

from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.show.figures.selection import SHARE_OF_SQUARES, GraphOptions, Node, Selection, select
from interbasis.show.figures.style import COLOURS, FAINT, GREY, INK, fitted, new_figure, note, plain, styled

ROW, BOX, BARE, GAP, MERGED = 0.17, 1.6, 0.45, 0.7, 0.65
"""Inches: a row's height, the widths of boxes with labels and without, of the space for curves, and of the
merged output."""
WIDEST, THINNEST = 4.0, 0.25
"""Points: the widest curve of every section, and what the faintest are raised to."""
OPAQUE, FAINTEST = 0.75, 0.2
"""How opaque curves are, and what part of it is left to those that would be thinner than the thinnest."""
LABEL_POINTS = 6
"""Size of the letters of labels."""


@styled
def interaction_graph(graph: InteractionGraph, **options: Any) -> Figure:
    """Draw the first features of every layer and the edges between them that count.

    Args:
        graph: A graph with edges.
        **options: The fields of `GraphOptions`: top, needed, labels, modules, layers, merge_output, power,
            title.

    Returns:
        The figure; features without an edge that counts are grey.

    Raises:
        InterbasisError: There are no edges, or layers, masks or the power do not fit the graph.
    """
    shown = GraphOptions(**options)
    power = shown.power
    if power is None:
        power = 1.0 if graph.provenance.predicts_next else 2.0
    if not power > 0:
        raise InterbasisError(f"line widths require a power of Ê above 0, received {power}")
    chosen = select(graph, shown)
    rows = max(1, *(len(column) for column in chosen.columns))
    across = _left(chosen, len(chosen.columns) - 1) + _width(chosen, len(chosen.columns) - 1)
    figure = new_figure(across + 0.1, rows * ROW + 1.3)
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_xlim(-0.02, across + 0.02)
    axes.set_ylim(-rows * ROW, 2.4 * ROW)
    colours = _colours(chosen)
    for k, edges in enumerate(chosen.sections):
        if edges:
            axes.add_collection(_curves(chosen, k, power, colours))
    for k, column in enumerate(chosen.columns):
        _draw_column(axes, chosen, k, column, colours)
    _legend(figure, chosen, colours, shown.modules is not None)
    note(figure, _explanation(chosen, power, shown.title))
    return figure


def _left(chosen: Selection, k: int) -> float:
    return sum(_width(chosen, before) + GAP for before in range(k))


def _width(chosen: Selection, k: int) -> float:
    if chosen.is_merged(k):
        return MERGED
    room = 0.15 if any(node.module >= 0 for node in chosen.columns[k]) else 0.0
    return BOX if any(node.label for node in chosen.columns[k]) else BARE + room


def _place(chosen: Selection, k: int, row: int) -> tuple[float, float]:
    """Left edge and middle height of a box; the merged output stands in the middle."""
    rows = max(len(column) for column in chosen.columns)
    offset = (rows - 1) / 2 if chosen.is_merged(k) else 0.0
    return _left(chosen, k), -(row + offset + 0.5) * ROW


def _curves(chosen: Selection, k: int, power: float, colours: dict[int, str]) -> PathCollection:
    """All edges of a section, weak ones below strong ones."""
    edges = sorted(chosen.sections[k], key=lambda edge: edge.strength)
    largest = edges[-1].strength
    paths, widths, shades, opacity = [], [], [], []
    for edge in edges:
        x0, y0 = _place(chosen, k, edge.source)
        x1, y1 = _place(chosen, k + 1, edge.target)
        x0 += _width(chosen, k)
        bent = [(x0, y0), ((2 * x0 + x1) / 3, y0), ((x0 + 2 * x1) / 3, y1), (x1, y1)]
        paths.append(Path(bent, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]))
        width = WIDEST * (edge.strength / largest) ** power
        widths.append(max(THINNEST, width))
        opacity.append(OPAQUE * max(FAINTEST, min(1.0, width / THINNEST)))
        source, target = chosen.columns[k][edge.source], chosen.columns[k + 1][edge.target]
        inside = source.module == target.module or target.index is None
        shades.append(colours.get(source.module, GREY) if inside else GREY)
    return PathCollection(
        paths,
        linewidths=widths,
        edgecolors=shades,
        facecolors="none",
        alpha=opacity,
        gid=f"edges:{k}",
        zorder=1,
    )


def _draw_column(
    axes: Axes, chosen: Selection, k: int, column: Sequence[Node], colours: dict[int, str]
) -> None:
    left = _left(chosen, k)
    shown = sum(node.index is not None for node in column)
    axes.text(left, 1.4 * ROW, plain(chosen.names[k]), fontsize=8.5, fontweight="bold", va="bottom")
    count = f"first {shown} of {chosen.features[k]:,}" if shown < chosen.features[k] else f"all {shown}"
    axes.text(
        left,
        0.4 * ROW,
        (f"{count} features" if _width(chosen, k) >= BOX else count) if shown else "",
        fontsize=6.5,
        color="#555555",
        va="bottom",
    )
    for row, node in enumerate(column):
        x, y = _place(chosen, k, row)
        _draw_node(axes, node, x, y, _width(chosen, k), colours)


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
    words = {
        "va": "center_baseline",
        "fontsize": LABEL_POINTS,
        "zorder": 3,
        "color": INK if node.needed else GREY,
    }
    axes.text(x + 0.2, y, str(node.index), words, ha="right", fontweight="bold")
    axes.text(x + 0.26, y, fitted(node.label, room, LABEL_POINTS), words)
    if numbered:
        axes.text(x + width - 0.04, y, str(node.module), words, ha="right", style="italic")


def _colours(chosen: Selection) -> dict[int, str]:
    """Colours of the modules with the most features shown; the others stay black."""
    sizes = Counter(
        node.module for column in chosen.columns for node in column if node.needed and node.module >= 0
    )
    largest = sorted(module for module, _ in sizes.most_common(len(COLOURS)))
    return dict(zip(largest, COLOURS, strict=False))


def _tint(colour: str) -> tuple[float, float, float]:
    """A colour mixed with much white, for the ground of a text."""
    red, green, blue = (0.8 + 0.2 * int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


def _legend(figure: Figure, chosen: Selection, colours: dict[int, str], grouped: bool) -> None:
    nodes = [node for column in chosen.columns for node in column if node.index is not None]
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
        columns = min(len(handles), 2 * len(chosen.columns))
        figure.legend(handles=handles, loc="outside upper left", ncols=columns)


def _explanation(chosen: Selection, power: float, title: str) -> str:
    strength = {1.0: "Ê", 2.0: "Ê²"}.get(power, f"Ê to the {power:g}")
    kind = largest = f"the largest edges that carry {SHARE_OF_SQUARES:.0%} of a section's Ê²"
    if any(chosen.ablated):
        kind = "the edges needed according to the ablation"
        others = [chosen.names[k] for k, ablated in enumerate(chosen.ablated) if not ablated]
        kind += f" (from {', '.join(others)}, which was not ablated, {largest})" if others else ""
    numbers = ""
    if any(node.module >= 0 for column in chosen.columns for node in column):
        numbers = " Small number at the right of a box: its module."
    counts = "; ".join(_counted(chosen, k) for k in range(len(chosen.sections)))
    return (
        (f"{title}. " if title else "")
        + f"Features from the most important downwards. Drawn are {kind}, between the features shown: "
        f"{counts}. Widths go with {strength}; the largest of each section is as wide as that of the "
        f"others, and hairlines are the fainter the weaker they are.{numbers}"
    )


def _counted(chosen: Selection, k: int) -> str:
    drawn, total = len(chosen.sections[k]), chosen.candidates[k]
    name = f"{chosen.names[k]} → {chosen.names[k + 1]}"
    if chosen.is_merged(k + 1):
        return f"{name} {total:,}, added up over the outputs"
    return f"{name} {drawn:,} of {total:,}" if drawn < total else f"{name} all {total:,}"
