"""Figures over seeds and bases that reproductions of the paper have: bars, counts tried, densities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from interbasis.analysis.ablation.records import Trial
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.base.errors import InterbasisError
from interbasis.show.figures import style
from interbasis.show.figures.bars import grouped_bars
from interbasis.show.figures.shares import share_axis

ONE_PANEL_INCHES = (5.2, 2.5)
"""Width and height of a figure with one panel."""
Scale = Literal["linear", "percent", "points", "log"]
"""Percent and points are of shares; points have a sign."""
MAX_TIMES_LARGEST_COUNT = 6
"""The axis ends at so many times the largest number required; larger numbers pass as a rule."""
Shares = Mapping[str, Mapping[str, Sequence[float]]]
"""{layer: {basis: shares}}."""
KERNEL_WIDTH = 0.05
"""In shares, the same for all, so that lines can be compared."""
GRID = np.linspace(0, 1, 201)


@style.styled
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
    figure, axes = style.panel_grid(len(panels), across=2, height=2.3)
    if len(panels) == 1:
        figure.set_size_inches(ONE_PANEL_INCHES)
    styles = style.looks(dict.fromkeys(basis for panel in panels.values() for basis in panel))
    for number, (panel, (title, bases)) in enumerate(zip(axes, panels.items(), strict=True)):
        known = {basis: {x: row for x, row in enumerate(rows) if len(row)} for basis, rows in bases.items()}
        drawn = grouped_bars(panel, styles, known, lambda row: sum(row) / len(row), bottom=bottom)
        for basis, colour, offset, bars in drawn:
            for x, row in bars.items():
                if len(row) > 1:
                    panel.plot(
                        [x, x], [min(row), max(row)], color=style.INK, linewidth=1.1, marker="_",
                        markersize=4, gid=f"range:{basis}",
                    )  # fmt: skip
            marks = (published or {}).get(title, {}).get(basis, ())
            if diamonds := {x + offset: y for x, y in enumerate(marks) if y is not None}:
                panel.scatter(
                    list(diamonds), list(diamonds.values()), s=26, marker="D", facecolors="white",
                    edgecolors=colour, zorder=4, linewidths=1.2, gid=f"published:{basis}",
                )  # fmt: skip
        if lines and title in lines:
            panel.axhline(lines[title], color=style.INK, linewidth=0.8, linestyle="--", zorder=0, gid="line")
        _set_scale(panel, scale)
        if scale != "points":
            panel.set_ylim(bottom=bottom, top=top)
        panel.set_xticks(range(len(groups)), [style.plain(group) for group in groups])
        panel.set_title(style.plain(title))
        if number % 2 == 0:
            panel.set_ylabel(quantity)
    style.add_legend(figure, axes)
    style.note(figure, explanation)
    return figure


def _set_scale(panel: Axes, scale: Scale) -> None:
    if scale == "log":
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    elif scale == "percent":
        panel.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    elif scale == "points":
        panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:+.3g}" if y else "0"))
        panel.axhline(0, color=style.INK, linewidth=0.6)


@style.styled
def modularity_bars(
    panels: Mapping[str, Mapping[str, Sequence[ModulesResult | None]]], places: Sequence[str]
) -> Figure:
    """A panel per title (a resolution, say); in it per place (a seed) a bar for each basis.

    The number in a bar is how many modules there are; the black mark is the rewired graphs' mean with two
    standard deviations.

    Args:
        panels: {title: {basis: modules per place, or None where there are none}}.
        places: Names of the places.

    Returns:
        The figure.

    Raises:
        InterbasisError: There are no panels, or a basis has another number of entries than there are places.
    """
    if not panels or any(len(row) != len(places) for p in panels.values() for row in p.values()):
        raise InterbasisError(f"expected at least one panel with {len(places)} graphs per basis")
    figure, axes = style.panel_grid(len(panels), across=min(len(panels), 2), height=2.6)
    for panel, (title, bases) in zip(axes, panels.items(), strict=True):
        known = {basis: {x: g for x, g in enumerate(row) if g and g.null} for basis, row in bases.items()}
        drawn = grouped_bars(
            panel, style.looks(bases), known, lambda graph: graph.modularity, widths=(0.84, 0.78)
        )
        for basis, _, _, graphs in drawn:
            panel.errorbar(
                list(graphs), [graph.null.mean for graph in graphs.values() if graph.null],
                [2 * graph.null.deviation for graph in graphs.values() if graph.null], linestyle="none",
                color=style.INK, marker="_", markersize=4, elinewidth=1.0, gid=f"null:{basis}",
            )  # fmt: skip
            for x, graph in graphs.items():
                panel.annotate(
                    str(graph.modules), (x, 0), (0, 3), textcoords="offset points", ha="center", va="bottom",
                    fontsize=5.5, color="white" if basis.lower() != "pca" else style.INK,
                )  # fmt: skip
        panel.set_xticks(range(len(places)), [style.plain(place) for place in places])
        panel.set_title(style.plain(title))
        panel.set_ylim(bottom=0)
    axes[0].set_ylabel("modularity")
    style.add_legend(figure, axes[:1], columns=5)
    style.note(
        figure,
        "Numbers: modules. Black: mean of rewired graphs with the same degrees and weights, with two "
        "standard deviations up and down; a bar that ends within them is no more modular than chance.",
    )
    return figure


@dataclass(frozen=True)
class Tried:
    """Trials at one place of one model."""

    trials: Sequence[Trial]
    """Values of trials that are not complete are bounds, and drawn as such."""
    count: int | None
    """How many are required."""
    limit: float
    """What the metric must reach."""


@style.styled
def tried_counts(
    rows: Mapping[str, Mapping[str, Sequence[Tried | None]]], places: Sequence[str], metric: str, what: str
) -> Figure:
    """A row of panels per model, a panel per place, a line per basis.

    Triangles are bounds: trials that were stopped before all samples were evaluated.

    Args:
        rows: What was tried at each place, {model: {basis: [places]}}; None where nothing was.
        places: Names of the sections or layers.
        metric: Name of the metric.
        what: What is kept, "edges" or "features".

    Returns:
        The figure; a vertical line is at the number required, a dotted one at what the metric must reach.

    Raises:
        InterbasisError: There are no models, or their places differ.
    """
    if not rows or any(len(tried) != len(places) for row in rows.values() for tried in row.values()):
        raise InterbasisError(f"expected at least one model with {len(places)} places per basis")
    figure = style.new_figure(style.WIDTH, 1.35 * len(rows) + 0.7)
    axes = figure.subplots(len(rows), len(places), squeeze=False, sharex="col", sharey=True)
    styles = style.looks(dict.fromkeys(basis for row in rows.values() for basis in row))
    for line, (model, row) in zip(axes, rows.items(), strict=True):
        for k, panel in enumerate(line):
            for basis, tried in row.items():
                if (series := tried[k]) is not None:
                    _draw_trials(panel, basis, series, styles[basis]["color"], styles[basis]["linestyle"])
        line[0].set_ylabel(style.plain(f"{model}\n{metric}"))
    columns = [
        [series for row in rows.values() for tried in row.values() if (series := tried[k])]
        for k in range(len(places))
    ]
    for k, place in enumerate(places):
        axes[0][k].set_title(style.plain(place), fontsize=7.5)
        axes[-1][k].set_xlabel(f"{what} kept")
        _set_count_scale(list(axes[:, k]), columns[k])
    style.add_legend(figure, axes.flat)
    bounded = any(not trial.complete for column in columns for tried in column for trial in tried.trials)
    triangles = "Triangles: trials that were stopped early, drawn at the best they could have reached."
    rule = f"Upright: {what} required. Dotted: what the {metric} must reach."
    style.note(figure, rule, triangles if bounded else "")
    return figure


def _set_count_scale(panels: Sequence[Axes], tried: Sequence[Tried]) -> None:
    """Logarithmic; linear from 0 to 1 where nothing at all was kept, too."""
    empty = any(trial.kept == 0 for series in tried for trial in series.trials)
    for panel in panels:
        panel.set_xscale("symlog" if empty else "log", **({"linthresh": 1} if empty else {}))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        panel.xaxis.set_minor_locator(NullLocator())
    counts = [series.count for series in tried if series.count]
    if counts:
        panels[0].set_xlim(right=MAX_TIMES_LARGEST_COUNT * max(counts))
    low, high = panels[0].get_xlim()
    if not empty:
        steps = (1.0, 2.0, 5.0) if high < 50 * low else (1.0, 3.0) if high < 2000 * low else (1.0,)
        panels[0].xaxis.set_major_locator(LogLocator(subs=steps))


def _draw_trials(panel: Axes, basis: str, tried: Tried, colour: str, dashes: str) -> None:
    measured, bounds = (
        [(trial.kept, trial.value) for trial in tried.trials if trial.complete is complete]
        for complete in (True, False)
    )
    if measured:
        panel.plot(
            *zip(*measured, strict=True), color=colour, linestyle=dashes, label=style.plain(basis),
            gid=f"tried:{basis}",
        )  # fmt: skip
    if bounds:
        panel.plot(
            *zip(*bounds, strict=True), color=colour, linestyle="none", marker="v", markersize=3,
            markerfacecolor="white", gid=f"bounds:{basis}",
        )  # fmt: skip
    if tried.count is not None:
        panel.axvline(tried.count, color=colour, linestyle=dashes, linewidth=0.8, gid=f"count:{basis}")
    panel.axhline(tried.limit, color=style.INK, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)


@style.styled
def share_densities(
    layers: Shares, *, published: Shares | None = None, source: str = "published shares", about: str = ""
) -> Figure:
    """A panel per layer with the density of the leading term's share for every basis.

    Lines are Gaussian kernel densities, ticks at the bottom the features themselves.

    Args:
        layers: {layer: {basis: shares of its features}}.
        published: Shares of someone else's models, as thin lines in the bases' colours.
        source: Whose they are.
        about: A note.

    Returns:
        The figure.

    Raises:
        InterbasisError: A layer has no shares.
    """
    if not layers or not all(layers.values()):
        raise InterbasisError("expected the shares of at least one basis in every layer")
    figure, panels = style.panel_grid(len(layers), height=2.5)
    styles = style.looks(dict.fromkeys(basis for shares in layers.values() for basis in shares))
    for panel, (layer, shares) in zip(panels, layers.items(), strict=True):
        densities = {basis: density(values) for basis, values in shares.items()}
        for basis, heights in densities.items():
            look = styles[basis] | {"marker": "None"}
            panel.plot(GRID, heights, label=style.plain(basis), gid=f"density:{basis}", **look)
        for basis, values in (published or {}).get(layer, {}).items():
            if basis in shares:
                panel.plot(
                    GRID, density(values), color=styles[basis]["color"], linewidth=0.7, alpha=0.8,
                    gid=f"published:{basis}",
                )  # fmt: skip
        highest = max(max(heights) for heights in densities.values())
        for place, (basis, values) in enumerate(shares.items()):
            below = [-(0.03 + 0.04 * place) * highest] * len(values)
            panel.plot(
                values, below, linestyle="none", marker="|", markersize=4, markeredgewidth=0.7,
                color=styles[basis]["color"], gid=f"shares:{basis}",
            )  # fmt: skip
        panel.set_title(style.plain(layer))
        panel.set_yticks([])
        share_axis(panel, 1.01, "one term")
    panels[0].set_ylabel("density of features")
    style.add_legend(figure, panels[:1], columns=len(styles))
    kernel = f"lines: Gaussian kernel of {100 * KERNEL_WIDTH:g} %, reflected at 0 and 100 %."
    style.note(figure, about, f"Ticks: the features; {kernel}", f"Thin lines: {source}." if published else "")
    return figure


def density(shares: Sequence[float]) -> np.ndarray:
    """Kernel density of shares on the grid; what the kernel puts beyond 0 and 1 is folded back."""
    values = np.asarray(shares, dtype=float)
    folded = (np.stack([GRID, -GRID, 2 - GRID])[:, :, None] - values) / KERNEL_WIDTH
    return np.exp(-0.5 * folded**2).sum(0).mean(1) / (KERNEL_WIDTH * np.sqrt(2 * np.pi))
