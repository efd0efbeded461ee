"""The metric against how much is kept: edges of one run, or what was tried seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from interbasis.analysis.ablation.records import Trial
from interbasis.analysis.stages.curves import CurvesResult
from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import (
    INK,
    WIDTH,
    add_legend,
    looks,
    new_figure,
    note,
    panel_grid,
    plain,
    styled,
)

MAX_TIMES_LARGEST_COUNT = 6
"""The axis ends at so many times the largest number required; larger numbers pass as a rule."""


@styled
def ablation_curves(results: Mapping[str, CurvesResult]) -> Figure:
    """A panel per section and one for all at once; a line per run.

    Args:
        results: Curves by the names of their runs (bases, say), all of the same sections and metric.

    Returns:
        The figure; bands are 95 % bootstrap intervals, and what is not defined is a gap.

    Raises:
        InterbasisError: There are no curves, or they are of different sections or metrics.
    """
    if not results:
        raise InterbasisError("expected the curves of at least one run, received none")
    first = next(iter(results.values()))
    titles, metric = _section_titles(first), first.curves.metric
    for name, result in results.items():
        if _section_titles(result) != titles:
            raise InterbasisError(f"the curves of {name!r} are of other sections than the first ones")
        if result.curves.metric != metric:
            raise InterbasisError(
                f"the curves of {name!r} are of {result.curves.metric}, the first ones of {metric}"
            )
    across = 4 if len(titles) == 3 else 3
    figure, panels = panel_grid(len(titles) + 1, across=across)
    styles = looks(results)
    sections: list[str | None] = [*titles, None]
    for k, (panel, section) in enumerate(zip(panels, sections, strict=True)):
        for name, result in results.items():
            curves, style = result.curves, styles[name]
            curve = curves.whole if section is None else curves.sections[section]
            panel.plot(curves.fractions, curve.values, label=plain(name), gid=f"curve:{name}", **style)
            low, high = zip(*curve.value_intervals, strict=True)
            panel.fill_between(curves.fractions, low, high, color=style["color"], alpha=0.25, linewidth=0)
            if section in result.worst:
                dashed = style | {"linestyle": "--", "marker": ""}
                panel.plot(curves.fractions, result.worst[section], gid=f"worst:{name}", **dashed)
        for baseline in {result.curves.baseline for result in results.values()}:
            panel.axhline(baseline, color=INK, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
        panel.set_title(plain("all sections at once" if section is None else titles[section]), fontsize=7.5)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:g} %"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel("edges kept")
        if k % across == 0:
            panel.set_ylabel(metric.replace("_", "-"))
    if len(results) > 1:
        add_legend(figure, panels)
    worst = any(result.worst for result in results.values())
    note(
        figure,
        "The largest edges are kept, the others ablated; the constant's are always kept. Dotted: the "
        "untouched model. Bands: 95 % bootstrap intervals over the samples.",
        "Dashed: the worst mask found within the edges that are not kept." if worst else "",
    )
    return figure


def _section_titles(result: CurvesResult) -> dict[str, str]:
    """Titles by the name of the section's source layer."""
    return {source: f"{source} → {result.sparsity[source].target}" for source in result.curves.sections}


@dataclass(frozen=True)
class Tried:
    """Trials at one place of one model."""

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
                if (series := tried[k]) is not None:
                    _draw_trials(panel, basis, series, styles[basis]["color"], styles[basis]["linestyle"])
        line[0].set_ylabel(plain(f"{model}\n{metric}"))
    columns = [
        [series for row in rows.values() for tried in row.values() if (series := tried[k])]
        for k in range(len(places))
    ]
    for k, place in enumerate(places):
        axes[0][k].set_title(plain(place), fontsize=7.5)
        axes[-1][k].set_xlabel(f"{what} kept")
        _set_count_scale(list(axes[:, k]), columns[k])
    add_legend(figure, axes.flat)
    bounded = any(not trial.complete for column in columns for tried in column for trial in tried.trials)
    triangles = "Triangles: trials that were stopped early, drawn at the best they could have reached."
    rule = f"Upright: {what} required. Dotted: what the {metric} must reach."
    note(figure, rule, triangles if bounded else "")
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
