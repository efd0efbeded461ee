"""The graph of one computation on paper: a column per layer, the nodes with most influence, signed edges."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from interbasis.analysis.traces.records import TARGET, Trace
from interbasis.show.figures.style import COLOURS, FAINT, INK, fitted, new_figure, note, styled

ROW, BOX, GAP = 0.2, 1.5, 0.6
"""Inches: a row's height, and the widths of boxes and of the space between columns."""
WIDEST = 3.0
"""Points: the widest curve."""
LABEL_POINTS = 6
"""Size of the letters of labels."""


@styled
def trace_graph(trace: Trace, *, top: int = 8, summary: bool = True) -> Figure:
    """Draw a trace: columns are layers, boxes features at positions, curves signed edges.

    Args:
        trace: The trace, ``run.trace(…).trace``.
        top: Nodes of each layer, those with most influence.
        summary: Say below the picture whether the trace's predictions hold.

    Returns:
        The figure. Orange edges raise the target or the node that they lead to, blue ones lower it; the width
        goes with the share of the edge in all that comes into its end.
    """
    layers = [layer.name for layer in trace.layers]
    columns = {}  # the nodes of every layer with most influence, in the order of their positions
    for name in layers:
        nodes = sorted((n for n in trace.nodes if n.layer == name), key=lambda node: -node.influence)
        columns[name] = sorted(nodes[:top], key=lambda node: (node.position, -node.influence))
    rows = max(1, *map(len, columns.values()))
    width, height = len(layers) * (BOX + GAP) + 0.8, (rows + 2) * ROW
    figure = new_figure(width, height + 0.5)
    axes = figure.add_subplot()
    axes.set(xlim=(0, width), ylim=(-height, 2 * ROW))
    axes.axis("off")
    texts = {token.position: token.text for token in trace.tokens}
    places = {TARGET: (width - 0.7, -(rows + 1) * ROW / 2)}
    for k, name in enumerate(layers):
        left = k * (BOX + GAP)
        axes.text(left, ROW / 2, fitted(name, BOX, 7), fontsize=7, fontweight="bold")
        for row, node in enumerate(columns[name]):
            middle = -(row + 1) * ROW
            places[node.name] = left, middle
            style = "round,pad=0,rounding_size=0.03"
            axes.add_patch(
                FancyBboxPatch((left, middle - 0.08), BOX, 0.16, style, ec=INK, fc="white", lw=0.5)
            )
            words = f"#{node.feature} {node.label} @ {texts.get(node.position, '').strip() or node.position}"
            text = fitted(words, BOX - 0.1, LABEL_POINTS)
            axes.text(left + 0.05, middle, text, fontsize=LABEL_POINTS, va="center")
    x, y = places[TARGET]
    axes.text(x, y, fitted(trace.target.name, 0.7, 7), fontsize=7, fontweight="bold", va="center")
    for edge in trace.edges:
        if edge.source in places and edge.target in places:
            (a, b), (c, d) = places[edge.source], places[edge.target]
            curve = Path([(a + BOX, b), (a + BOX + GAP / 2, b), (c - GAP / 2, d), (c, d)], [1, 4, 4, 4])
            colour = COLOURS[5] if edge.weight > 0 else COLOURS[0]  # as on the page
            axes.add_patch(
                PathPatch(curve, fc="none", ec=colour, lw=0.2 + WIDEST * edge.share, alpha=0.7, zorder=0)
            )
    shown = f"Shown: {sum(map(len, columns.values()))} of {len(trace.nodes)} nodes."
    parts = [trace.summary] * summary + [shown, "Orange edges raise, blue ones lower."]
    note(figure, " ".join(parts))
    figure.patch.set_edgecolor(FAINT)
    return figure
