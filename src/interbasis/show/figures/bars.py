"""Bars side by side: means over seeds, AUROC of features, modularity of graphs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import INK, add_legend, looks, note, panel_grid, plain, shortened, styled

T = TypeVar("T")
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

    Returns:
        The figure.

    Raises:
        InterbasisError: There are no panels, or values do not match the groups.
    """
    if not panels or any(len(rows) != len(groups) for p in panels.values() for rows in p.values()):
        raise InterbasisError(f"expected at least one panel with values for {len(groups)} groups per basis")
    figure, axes = panel_grid(len(panels), across=2, height=2.3)
    if len(panels) == 1:
        figure.set_size_inches(ONE_PANEL_INCHES)
    styles = looks(dict.fromkeys(basis for panel in panels.values() for basis in panel))
    for number, (panel, (title, bases)) in enumerate(zip(axes, panels.items(), strict=True)):
        known = {basis: {x: row for x, row in enumerate(rows) if len(row)} for basis, rows in bases.items()}
        drawn = _bars(panel, styles, known, lambda row: sum(row) / len(row), bottom=bottom)
        for basis, colour, offset, bars in drawn:
            for x, row in bars.items():
                if len(row) > 1:
                    panel.plot(
                        [x, x], [min(row), max(row)], color=INK, linewidth=1.1, marker="_", markersize=4,
                        gid=f"range:{basis}",
                    )  # fmt: skip
            marks = (published or {}).get(title, {}).get(basis, ())
            if diamonds := {x + offset: y for x, y in enumerate(marks) if y is not None}:
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
        if number % 2 == 0:
            panel.set_ylabel(quantity)
    add_legend(figure, axes)
    note(figure, explanation)
    return figure


def _bars(
    panel: Axes,
    styles: Mapping[str, Mapping[str, str]],
    bases: Mapping[str, Mapping[int, T]],
    height: Callable[[T], float],
    *,
    gid: str = "bars",
    bottom: float = 0.0,
    widths: tuple[float, float] = (0.8, 0.76),
) -> Iterator[tuple[str, str, float, dict[float, T]]]:
    """Draw a bar per basis at every place; all of a place share a width, of which bars fill a part.

    Yields:
        Each basis with its colour, its distance from a place, and its values by the centres of their bars.
    """
    for number, (basis, values) in enumerate(bases.items()):
        offset = (number - (len(bases) - 1) / 2) * widths[0] / len(bases)
        bars = {x + offset: value for x, value in values.items()}
        colour = styles[basis]["color"]
        panel.bar(
            list(bars), [height(value) - bottom for value in bars.values()], widths[1] / len(bases),
            bottom=bottom, color=colour, label=plain(basis), gid=f"{gid}:{basis}",
        )  # fmt: skip
        yield basis, colour, offset, bars


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
) -> Figure:
    """A panel per layer with a bar per feature and basis, from 0.5 (chance) to 1.

    Args:
        layers: {layer: {basis: AUROC of its first features}}; an area a below 0.5 is drawn as 1 − a, since
            the sign of a feature is arbitrary.
        attribute: What the features separate, written at the axis.
        names: A text per feature, below the bars of a layer.

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
    for panel, (layer, bases) in zip(panels, layers.items(), strict=True):
        numbered = {basis: dict(enumerate(values, 1)) for basis, values in bases.items()}
        list(_bars(panel, styles, numbered, lambda a: max(a, 1 - a), gid="auroc", bottom=0.5))
        panel.set_ylim(0.5, 1)
        panel.set_ylabel("AUROC")
        panel.set_xlabel("feature")
        panel.set_title(plain(layer))
        if texts := (names or {}).get(layer):
            ticks = [plain(f"{shortened(text, 14)} {k}") for k, text in enumerate(texts, 1)]
            panel.set_xticks(range(1, 1 + len(texts)), ticks, rotation=90, fontsize=6)
        else:
            panel.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    if len(styles) > 1:
        add_legend(figure, panels)
    note(figure, f"AUROC of single features as classifiers of {attribute}, sign chosen; 0.5 is chance.")
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
        known = {basis: {x: g for x, g in enumerate(row) if g is not None} for basis, row in bases.items()}
        drawn = _bars(panel, looks(bases), known, lambda graph: graph.value, widths=(0.84, 0.78))
        for basis, _, _, graphs in drawn:
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
