"""How the metric falls as edges are ablated, with the uncertainty of the samples."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from interbasis.analysis.ablation.records import Curve
from interbasis.analysis.stages.curves import CurvesResult
from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import INK, grid_of, looks, note, plain, styled


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
    titles = _titles(first)
    for name, result in results.items():
        if _titles(result) != titles:
            raise InterbasisError(f"the curves of {name!r} are of other sections than the first ones")
        if result.curves.metric != first.curves.metric:
            raise InterbasisError(
                f"the curves of {name!r} are of {result.curves.metric}, the first ones of "
                f"{first.curves.metric}"
            )
    across = 4 if len(titles) == 3 else 3
    figure, panels = grid_of(len(titles) + 1, most=across)
    styles = looks(results)
    sections: list[str | None] = [*titles, None]
    for k, (panel, section) in enumerate(zip(panels, sections, strict=True)):
        for name, result in results.items():
            curves = result.curves
            curve = curves.whole if section is None else curves.sections[section]
            _line(panel, name, curves.fractions, curve, styles[name])
            if section in result.worst:
                worst = styles[name] | {"linestyle": "--", "marker": ""}
                panel.plot(curves.fractions, result.worst[section], gid=f"worst:{name}", **worst)
        for baseline in {result.curves.baseline for result in results.values()}:
            panel.axhline(baseline, color=INK, linewidth=0.6, linestyle=(0, (1, 2)), zorder=0)
        title = "all sections at once" if section is None else titles[section]
        panel.set_title(plain(title), fontsize=7.5)
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:g} %"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel("edges kept")
        if k % across == 0:
            panel.set_ylabel(first.curves.metric.replace("_", "-"))
    if len(results) > 1:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(results))
    dashed = " Dashed: the worst mask found within the edges that are not kept."
    note(
        figure,
        "The largest edges are kept, the others ablated; the constant's are always kept. Dotted: the "
        "untouched model. Bands: 95 % bootstrap intervals over the samples."
        + (dashed if any(result.worst for result in results.values()) else ""),
    )
    return figure


def _titles(result: CurvesResult) -> dict[str, str]:
    """Titles by the name of the section's source layer."""
    return {source: f"{source} → {result.sparsity[source].target}" for source in result.curves.sections}


def _line(panel: Axes, name: str, fractions: tuple[float, ...], curve: Curve, style: dict[str, Any]) -> None:
    panel.plot(fractions, curve.values, label=plain(name), gid=f"curve:{name}", **style)
    low, high = zip(*curve.value_intervals, strict=True)
    panel.fill_between(fractions, low, high, color=style["color"], alpha=0.25, linewidth=0)
