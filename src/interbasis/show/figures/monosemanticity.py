"""How much of a feature one term explains, basis beside basis."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from interbasis.analysis.features.monosemanticity import ShareComparison, compare
from interbasis.show.figures.style import looks, new_figure, note, plain, styled


@styled
def monosemanticity(shares: Mapping[str, Sequence[float]] | ShareComparison, title: str = "") -> Figure:
    """Density and cumulative distribution of the leading term's share of every feature's variance.

    Args:
        shares: The shares of the features of each basis, or what `interbasis.features.compare` made of them.
        title: Written in the note below.

    Returns:
        The figure.
    """
    comparison = shares if isinstance(shares, ShareComparison) else compare(dict(shares))
    figure = new_figure(height=2.6)
    left, right = figure.subplots(1, 2)
    styles = looks(comparison.density)
    for name in comparison.density:
        style = styles[name] | {"marker": "None"}
        size = "" if isinstance(shares, ShareComparison) else f" ({len(shares[name])} features)"
        left.plot(
            comparison.grid,
            comparison.density[name],
            label=plain(f"{name}{size}"),
            gid=f"density:{name}",
            **style,
        )
        right.plot(
            comparison.grid,
            comparison.cumulative[name],
            gid=f"cumulative:{name}",
            drawstyle="steps-post",
            **style,
        )
    left.set_title("density")
    left.set_ylabel("density of features")
    left.set_ylim(bottom=0)
    right.set_title("cumulative")
    right.set_ylabel("features with at most that share")
    right.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for panel in (left, right):
        panel.set_xlim(0, 1)
        panel.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        panel.set_xlabel("variance explained by the leading term")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=len(comparison.density))
    tests = "; ".join(
        f"{a} and {b}: {distance:.2f} (p = {comparison.p_value[a, b]:.2g})"
        for (a, b), distance in comparison.distance.items()
    )
    text = "Gaussian kernel, reflected at 0 and 100 %."
    note(figure, " ".join(filter(None, [title, text, tests and f"Kolmogorov–Smirnov distance, {tests}."])))
    return figure
