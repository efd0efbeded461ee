"""Shares of features that one term explains, bases compared."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from interbasis.analysis.features.fourier_labels import compare
from interbasis.show.figures.style import add_legend, looks, new_figure, note, plain, styled


def share_axis(panel: Axes, end: float, term: str) -> None:
    """Label the axis of the variance that a term explains, from 0 to ``end``."""
    panel.set_xlim(0, end)
    panel.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    panel.set_xlabel(f"variance explained by {term}")


@styled
def monosemanticity(shares: Mapping[str, Sequence[float]], title: str = "") -> Figure:
    """Density and cumulative distribution of the leading term's share of every feature's variance.

    Args:
        shares: The shares of the features of each basis.
        title: Written in the note below.

    Returns:
        The figure.
    """
    comparison = compare(dict(shares))
    figure = new_figure(height=2.6)
    left, right = figure.subplots(1, 2)
    styles = looks(comparison.density)
    grid = comparison.grid
    for name, heights in comparison.density.items():
        style = styles[name] | {"marker": "None"}
        label = plain(f"{name} ({len(shares[name])} features)")
        left.plot(grid, heights, label=label, gid=f"density:{name}", **style)
        style |= {"drawstyle": "steps-post"}
        right.plot(grid, comparison.cumulative[name], gid=f"cumulative:{name}", **style)
    left.set(title="density", ylabel="density of features")
    left.set_ylim(bottom=0)
    right.set(title="cumulative", ylabel="features with at most that share")
    right.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for panel in (left, right):
        share_axis(panel, 1, "the leading term")
    add_legend(figure, [left])
    tests = "; ".join(
        f"{a} and {b}: {distance:.2f} (p = {comparison.p_value[a, b]:.2g})"
        for (a, b), distance in comparison.distance.items()
    )
    tests = f"Kolmogorov–Smirnov distance, {tests}." if tests else ""
    note(figure, title, "Gaussian kernel, reflected at 0 and 100 %.", tests)
    return figure
