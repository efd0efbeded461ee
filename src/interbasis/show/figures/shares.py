"""Shares of features that one term explains: densities by layer, and bases compared."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from interbasis.analysis.features.monosemanticity import compare
from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import add_legend, looks, new_figure, note, panel_grid, plain, styled

Shares = Mapping[str, Mapping[str, Sequence[float]]]
"""{layer: {basis: shares}}."""
KERNEL_WIDTH = 0.05
"""In shares, the same for all, so that lines can be compared."""
GRID = np.linspace(0, 1, 201)


@styled
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
    figure, panels = panel_grid(len(layers), height=2.5)
    styles = looks(dict.fromkeys(basis for shares in layers.values() for basis in shares))
    for panel, (layer, shares) in zip(panels, layers.items(), strict=True):
        densities = {basis: density(values) for basis, values in shares.items()}
        for basis, heights in densities.items():
            style = styles[basis] | {"marker": "None"}
            panel.plot(GRID, heights, label=plain(basis), gid=f"density:{basis}", **style)
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
        panel.set_title(plain(layer))
        panel.set_yticks([])
        _share_axis(panel, 1.01, "one term")
    panels[0].set_ylabel("density of features")
    add_legend(figure, panels[:1], columns=len(styles))
    kernel = f"lines: Gaussian kernel of {100 * KERNEL_WIDTH:g} %, reflected at 0 and 100 %."
    note(figure, about, f"Ticks: the features; {kernel}", f"Thin lines: {source}." if published else "")
    return figure


def density(shares: Sequence[float]) -> np.ndarray:
    """Kernel density of shares on the grid; what the kernel puts beyond 0 and 1 is folded back."""
    values = np.asarray(shares, dtype=float)
    folded = (np.stack([GRID, -GRID, 2 - GRID])[:, :, None] - values) / KERNEL_WIDTH
    return np.exp(-0.5 * folded**2).sum(0).mean(1) / (KERNEL_WIDTH * np.sqrt(2 * np.pi))


def _share_axis(panel: Axes, end: float, term: str) -> None:
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
        _share_axis(panel, 1, "the leading term")
    add_legend(figure, [left])
    tests = "; ".join(
        f"{a} and {b}: {distance:.2f} (p = {comparison.p_value[a, b]:.2g})"
        for (a, b), distance in comparison.distance.items()
    )
    tests = f"Kolmogorov–Smirnov distance, {tests}." if tests else ""
    note(figure, title, "Gaussian kernel, reflected at 0 and 100 %.", tests)
    return figure
