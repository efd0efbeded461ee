"""The metric against the number of features or edges that are kept, seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from interbasis.figures.style import INK, WIDTH, looks, new_figure, note, plain, styled
from interbasis.runtime.errors import InterbasisError

BEYOND = 6
"""So many times the largest number required is shown; all that is more passes as a rule."""


@dataclass(frozen=True)
class Tried:
    """What was tried at one place of one model."""

    kept: Sequence[int]
    values: Sequence[float]
    bounds: Sequence[bool]
    """True where the value is only known not to be better."""
    count: int | None
    """How many are required."""
    limit: float
    """What the metric must reach."""


@styled
def tried_counts(
    rows: Mapping[str, Mapping[str, Sequence[Tried | None]]], places: Sequence[str], metric: str, what: str
) -> Figure:
    """A row of panels per model, a panel per place, a line per basis.

    ``rows`` is {model: {basis: what was tried at each place}}. Triangles are values that are only known from
    above; a vertical line is at the number required, a dotted one at what the metric must reach.
    """
    if not rows or any(len(tried) != len(places) for row in rows.values() for tried in row.values()):
        raise InterbasisError(f"expected at least one model with {len(places)} places per basis")
    figure = new_figure(WIDTH, 1.35 * len(rows) + 0.7)
    axes = figure.subplots(len(rows), len(places), squeeze=False, sharex="col", sharey=True)
    styles = looks(dict.fromkeys(basis for row in rows.values() for basis in row))
    for line, (model, row) in zip(axes, rows.items(), strict=True):
        for k, panel in enumerate(line):
            for basis, found in row.items():
                if (one := found[k]) is not None:
                    _curve(panel, basis, one, styles[basis]["color"], styles[basis]["linestyle"])
        line[0].set_ylabel(plain(f"{model}\n{metric}"))
    for k, place in enumerate(places):
        axes[0][k].set_title(plain(place), fontsize=7.5)
        axes[-1][k].set_xlabel(f"{what} kept")
        _scale(list(axes[:, k]), [t for row in rows.values() for found in row.values() if (t := found[k])])
    handles = {
        label: handle
        for panel in axes.flat
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles))
    bounded = any(any(t.bounds) for row in rows.values() for found in row.values() for t in found if t)
    note(
        figure,
        f"Upright: {what} required. Dotted: what the {metric} must reach."
        + (
            " Triangles: trials that were broken off, drawn at what they could have reached."
            if bounded
            else ""
        ),
    )
    return figure


def _scale(panels: Sequence[Axes], tried: Sequence[Tried]) -> None:
    """Logarithmic; linear from 0 to 1 where nothing at all was kept, too."""
    none = any(0 in one.kept for one in tried)
    for panel in panels:
        panel.set_xscale("symlog" if none else "log", **({"linthresh": 1} if none else {}))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        panel.xaxis.set_minor_locator(NullLocator())
    counts = [one.count for one in tried if one.count]
    if counts:
        panels[0].set_xlim(right=BEYOND * max(counts))
    low, high = panels[0].get_xlim()
    if not none:
        steps = (1.0, 2.0, 5.0) if high < 50 * low else (1.0, 3.0) if high < 2000 * low else (1.0,)
        panels[0].xaxis.set_major_locator(LogLocator(subs=steps))


def _curve(panel: Axes, basis: str, tried: Tried, colour: str, dashes: str) -> None:
    whole = [(x, y) for x, y, b in zip(tried.kept, tried.values, tried.bounds, strict=True) if not b]
    broken = [(x, y) for x, y, b in zip(tried.kept, tried.values, tried.bounds, strict=True) if b]
    if whole:
        panel.plot(
            *zip(*whole, strict=True), color=colour, linestyle=dashes, label=plain(basis),
            gid=f"tried:{basis}",
        )  # fmt: skip
    if broken:
        panel.plot(
            *zip(*broken, strict=True), color=colour, linestyle="none", marker="v", markersize=3,
            markerfacecolor="white", gid=f"bounds:{basis}",
        )  # fmt: skip
    if tried.count is not None:
        panel.axvline(tried.count, color=colour, linestyle=dashes, linewidth=0.8, gid=f"count:{basis}")
    panel.axhline(tried.limit, color=INK, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
