"""The metric against the number of features or edges that are kept, seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from interbasis.analysis.ablation.records import Trial
from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import INK, WIDTH, looks, new_figure, note, plain, styled

MAX_TIMES_LARGEST_COUNT = 6
"""The axis ends at so many times the largest number required; larger numbers pass as a rule."""


@dataclass(frozen=True)
class Tried:
    """What was tried at one place of one model."""

    trials: Sequence[Trial]
    """Values of trials that are not complete are bounds, and drawn as such."""
    count: int | None
    """How many are required."""
    limit: float
    """What the metric must reach."""


@styled
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
    figure = new_figure(WIDTH, 1.35 * len(rows) + 0.7)
    axes = figure.subplots(len(rows), len(places), squeeze=False, sharex="col", sharey=True)
    styles = looks(dict.fromkeys(basis for row in rows.values() for basis in row))
    for line, (model, row) in zip(axes, rows.items(), strict=True):
        for k, panel in enumerate(line):
            for basis, tried in row.items():
                if (one := tried[k]) is not None:
                    _curve(panel, basis, one, styles[basis]["color"], styles[basis]["linestyle"])
        line[0].set_ylabel(plain(f"{model}\n{metric}"))
    for k, place in enumerate(places):
        axes[0][k].set_title(plain(place), fontsize=7.5)
        axes[-1][k].set_xlabel(f"{what} kept")
        _scale(list(axes[:, k]), [t for row in rows.values() for tried in row.values() if (t := tried[k])])
    handles = {
        label: handle
        for panel in axes.flat
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles))
    bounded = any(
        any(not one.complete for one in t.trials)
        for row in rows.values()
        for tried in row.values()
        for t in tried
        if t
    )
    note(
        figure,
        f"Upright: {what} required. Dotted: what the {metric} must reach."
        + (
            " Triangles: trials that were stopped early, drawn at the best they could have reached."
            if bounded
            else ""
        ),
    )
    return figure


def _scale(panels: Sequence[Axes], tried: Sequence[Tried]) -> None:
    """Logarithmic; linear from 0 to 1 where nothing at all was kept, too."""
    none = any(trial.kept == 0 for one in tried for trial in one.trials)
    for panel in panels:
        panel.set_xscale("symlog" if none else "log", **({"linthresh": 1} if none else {}))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        panel.xaxis.set_minor_locator(NullLocator())
    counts = [one.count for one in tried if one.count]
    if counts:
        panels[0].set_xlim(right=MAX_TIMES_LARGEST_COUNT * max(counts))
    low, high = panels[0].get_xlim()
    if not none:
        steps = (1.0, 2.0, 5.0) if high < 50 * low else (1.0, 3.0) if high < 2000 * low else (1.0,)
        panels[0].xaxis.set_major_locator(LogLocator(subs=steps))


def _curve(panel: Axes, basis: str, tried: Tried, colour: str, dashes: str) -> None:
    measured = [(trial.kept, trial.value) for trial in tried.trials if trial.complete]
    bounds = [(trial.kept, trial.value) for trial in tried.trials if not trial.complete]
    if measured:
        panel.plot(
            *zip(*measured, strict=True), color=colour, linestyle=dashes, label=plain(basis),
            gid=f"tried:{basis}",
        )  # fmt: skip
    if bounds:
        panel.plot(
            *zip(*bounds, strict=True), color=colour, linestyle="none", marker="v", markersize=3,
            markerfacecolor="white", gid=f"bounds:{basis}",
        )  # fmt: skip
    if tried.count is not None:
        panel.axvline(tried.count, color=colour, linestyle=dashes, linewidth=0.8, gid=f"count:{basis}")
    panel.axhline(tried.limit, color=INK, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
