"""The metric against how many edges are kept."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from interbasis.analysis.stages.curves import CurvesResult
from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import INK, add_legend, looks, note, panel_grid, plain, styled


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
        "original model. Bands: 95 % bootstrap intervals over the samples.",
        "Dashed: the worst mask found within the edges that are not kept." if worst else "",
    )
    return figure


def _section_titles(result: CurvesResult) -> dict[str, str]:
    """Titles by the name of the section's source layer."""
    return {source: f"{source} → {result.sparsity[source].target}" for source in result.curves.sections}
