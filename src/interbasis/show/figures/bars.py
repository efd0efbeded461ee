"""Bars side by side: means over seeds, AUROC of features, modularity of graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import INK, add_legend, looks, note, panel_grid, plain, shortened, styled

ONE_PANEL_INCHES = (5.2, 2.5)
"""Width and height of a figure with one panel."""
Scale = Literal["linear", "percent", "points", "log"]
"""Percent and points are of shares; points have a sign."""


@dataclass(frozen=True)
class Modularity:
    """Modularity of one graph, and mean and standard deviation of rewired ones."""

    value: float
    null_mean: float
    null_deviation: float
    modules: int


@styled
def spread_bars(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    groups: Sequence[str],
    quantity: str,
    *,
    scale: Scale = "linear",
    bottom: float = 0.0,
    top: float | None = None,
    lines: Mapping[str, float] | None = None,
    published: Mapping[str, Mapping[str, Sequence[float | None]]] | None = None,
    explanation: str = "",
    across: int = 2,
) -> Figure:
    """A panel per title; in it per group a bar for each basis at the mean, with the range over the seeds.

    Args:
        panels: Values by title and basis, [groups][seeds].
        groups: Names of the groups.
        quantity: What is shown, written at the axis.
        scale: Scale of the axis; percent and points are of shares, points have a sign.
        bottom: Where bars begin.
        top: Where the axis ends.
        lines: Dashed across the panel of that title.
        published: Diamonds, {title: {basis: a value or None for each group}}.
        explanation: A note below.
        across: Panels in a row.

    Returns:
        The figure.

    Raises:
        InterbasisError: There are no panels, or values do not match the groups.
    """
    if not panels or any(len(rows) != len(groups) for p in panels.values() for rows in p.values()):
        raise InterbasisError(f"expected at least one panel with values for {len(groups)} groups per basis")
    figure, axes = panel_grid(len(panels), across=across, height=2.3)
    if len(panels) == 1:
        figure.set_size_inches(ONE_PANEL_INCHES)
    styles = looks(dict.fromkeys(basis for panel in panels.values() for basis in panel))
    for number, (panel, (title, bases)) in enumerate(zip(axes, panels.items(), strict=True)):
        marks = (published or {}).get(title, {})
        for offset, (basis, rows) in zip(_offsets(len(bases), 0.8), bases.items(), strict=True):
            colour = styles[basis]["color"]
            _bars_with_ranges(panel, basis, rows, (offset, 0.76 / len(bases)), colour, bottom)
            diamonds = {x + offset: y for x, y in enumerate(marks.get(basis, ())) if y is not None}
            if diamonds:
                panel.scatter(
                    list(diamonds), list(diamonds.values()), s=26, marker="D", facecolors="white",
                    edgecolors=colour, zorder=4, linewidths=1.2, gid=f"published:{basis}",
                )  # fmt: skip
        if lines and title in lines:
            panel.axhline(lines[title], color=INK, linewidth=0.8, linestyle="--", zorder=0, gid="line")
        _set_scale(panel, scale)
        if scale != "points":
            panel.set_ylim(bottom=bottom, top=top)
        panel.set_xticks(range(len(groups)), [plain(group) for group in groups])
        panel.set_title(plain(title))
        if number % across == 0:
            panel.set_ylabel(quantity)
    add_legend(figure, axes)
    note(figure, explanation)
    return figure


def _offsets(count: int, width: float) -> list[float]:
    """Centres of bars that share a width around 0."""
    return [(number - (count - 1) / 2) * width / count for number in range(count)]


def _bars_with_ranges(
    panel: Axes,
    basis: str,
    rows: Sequence[Sequence[float]],
    place: tuple[float, float],
    colour: str,
    bottom: float,
) -> None:
    offset, width = place
    bars = {x + offset: row for x, row in enumerate(rows) if len(row)}
    heights = [sum(row) / len(row) - bottom for row in bars.values()]
    panel.bar(
        list(bars), heights, width, bottom=bottom, color=colour, label=plain(basis), gid=f"bars:{basis}"
    )
    for x, row in bars.items():
        if len(row) > 1:
            panel.plot(
                [x, x], [min(row), max(row)], color=INK, linewidth=1.1, marker="_", markersize=4,
                gid=f"range:{basis}",
            )  # fmt: skip


def _set_scale(panel: Axes, scale: Scale) -> None:
    if scale == "log":
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    elif scale == "percent":
        panel.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    elif scale == "points":
        panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:+.3g}" if y else "0"))
        panel.axhline(0, color=INK, linewidth=0.6)


@styled
def auroc_bars(
    layers: Mapping[str, Mapping[str, Sequence[float]]],
    attribute: str,
    *,
    names: Mapping[str, Sequence[str]] | None = None,
    reference: float | None = None,
    first: int = 1,
) -> Figure:
    """A panel per layer with a bar per feature and basis, from 0.5 (chance) to 1.

    Args:
        layers: {layer: {basis: AUROC of its first features}}; an area a below 0.5 is drawn as 1 − a, since
            the sign of a feature is arbitrary.
        attribute: What the features separate, written at the axis.
        names: A text per feature, below the bars of a layer.
        reference: A line, such as the whole model's AUROC.
        first: Index of the first feature.

    Returns:
        The figure.

    Raises:
        InterbasisError: There is no AUROC, or one is not between 0 and 1.
    """
    areas = [a for bars in layers.values() for values in bars.values() for a in values]
    if not areas or not all(0 <= a <= 1 for a in areas):
        raise InterbasisError("expected at least one AUROC, all between 0 and 1")
    figure, panels = panel_grid(len(layers), across=2, height=2.2)
    styles = looks(dict.fromkeys(basis for bars in layers.values() for basis in bars))
    for panel, (layer, bars) in zip(panels, layers.items(), strict=True):
        for offset, (basis, values) in zip(_offsets(len(bars), 0.8), bars.items(), strict=True):
            panel.bar(
                [first + k + offset for k in range(len(values))], [max(a, 1 - a) - 0.5 for a in values],
                0.76 / len(bars), bottom=0.5, color=styles[basis]["color"], label=plain(basis),
                gid=f"auroc:{basis}",
            )  # fmt: skip
        panel.set_ylim(0.5, 1)
        panel.set_ylabel("AUROC")
        panel.set_xlabel("feature")
        panel.set_title(plain(layer))
        if texts := (names or {}).get(layer):
            ticks = [plain(f"{shortened(text, 14)} {k}") for k, text in enumerate(texts, first)]
            panel.set_xticks(range(first, first + len(texts)), ticks, rotation=90, fontsize=6)
        else:
            panel.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        if reference is not None:
            panel.axhline(max(reference, 1 - reference), color=INK, linewidth=0.8, linestyle="--")
    if len(styles) > 1:
        add_legend(figure, panels)
    line = "" if reference is None else " Dashed: the whole model."
    note(figure, f"AUROC of single features as classifiers of {attribute}, sign chosen; 0.5 is chance.{line}")
    return figure


@styled
def modularity_bars(
    panels: Mapping[str, Mapping[str, Sequence[Modularity | None]]], places: Sequence[str]
) -> Figure:
    """A panel per title (a resolution, say); in it per place (a seed) a bar for each basis.

    The number in a bar is how many modules there are; the black mark is the rewired graphs' mean with two
    standard deviations.

    Args:
        panels: {title: {basis: one entry per place, or None where there is none}}.
        places: Names of the places.

    Returns:
        The figure.

    Raises:
        InterbasisError: There are no panels, or a basis has another number of entries than there are places.
    """
    if not panels or any(len(row) != len(places) for p in panels.values() for row in p.values()):
        raise InterbasisError(f"expected at least one panel with {len(places)} graphs per basis")
    figure, axes = panel_grid(len(panels), across=min(len(panels), 2), height=2.6)
    for panel, (title, bases) in zip(axes, panels.items(), strict=True):
        styles = looks(bases)
        for offset, (basis, row) in zip(_offsets(len(bases), 0.84), bases.items(), strict=True):
            graphs = {x + offset: graph for x, graph in enumerate(row) if graph is not None}
            panel.bar(
                list(graphs), [graph.value for graph in graphs.values()], 0.78 / len(bases),
                color=styles[basis]["color"], label=plain(basis), gid=f"bars:{basis}",
            )  # fmt: skip
            panel.errorbar(
                list(graphs), [graph.null_mean for graph in graphs.values()],
                [2 * graph.null_deviation for graph in graphs.values()], linestyle="none", color=INK,
                marker="_", markersize=4, elinewidth=1.0, gid=f"null:{basis}",
            )  # fmt: skip
            for x, graph in graphs.items():
                panel.annotate(
                    str(graph.modules), (x, 0), (0, 3), textcoords="offset points", ha="center", va="bottom",
                    fontsize=5.5, color="white" if basis.lower() != "pca" else INK,
                )  # fmt: skip
        panel.set_xticks(range(len(places)), [plain(place) for place in places])
        panel.set_title(plain(title))
        panel.set_ylim(bottom=0)
    axes[0].set_ylabel("modularity")
    add_legend(figure, axes[:1], columns=5)
    note(
        figure,
        "Numbers: modules. Black: mean of rewired graphs with the same degrees and weights, with two "
        "standard deviations up and down; a bar that ends within them is no more modular than chance.",
    )
    return figure
