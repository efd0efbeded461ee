"""The leading shares of features, layer by layer, beside someone else's."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import grid_of, looks, note, plain, styled

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
    figure, panels = grid_of(len(layers), height=2.5)
    styles = looks(dict.fromkeys(basis for shares in layers.values() for basis in shares))
    for number, (panel, (layer, shares)) in enumerate(zip(panels, layers.items(), strict=True)):
        theirs = {basis: v for basis, v in (published or {}).get(layer, {}).items() if basis in shares}
        ours = {basis: density(values) for basis, values in shares.items()}
        for basis, heights in ours.items():
            style = styles[basis] | {"marker": "None"}
            panel.plot(GRID, heights, label=plain(basis), gid=f"density:{basis}", **style)
        for basis, values in theirs.items():
            panel.plot(
                GRID, density(values), color=styles[basis]["color"], linewidth=0.7, alpha=0.8,
                gid=f"published:{basis}",
            )  # fmt: skip
        highest = max(max(heights) for heights in ours.values())
        for place, (basis, values) in enumerate(shares.items()):
            below = [-(0.03 + 0.04 * place) * highest] * len(values)
            panel.plot(
                values, below, linestyle="none", marker="|", markersize=4, markeredgewidth=0.7,
                color=styles[basis]["color"], gid=f"shares:{basis}",
            )  # fmt: skip
        panel.set_title(plain(layer))
        panel.set_xlim(0, 1.01)
        panel.set_yticks([])
        panel.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        panel.set_xlabel("variance explained by one term")
        if number == 0:
            panel.set_ylabel("density of features")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(styles))
    thin = f"Thin lines: {source}." if published else ""
    text = (
        about,
        f"Ticks: the features; lines: Gaussian kernel of {100 * KERNEL_WIDTH:g} %, reflected at 0 and 100 %.",
        thin,
    )
    note(figure, " ".join(part for part in text if part))
    return figure


def density(shares: Sequence[float]) -> np.ndarray:
    """Kernel density of shares on the grid; what the kernel puts beyond 0 and 1 is folded back."""
    values = np.asarray(shares, dtype=float)
    folded = (np.stack([GRID, -GRID, 2 - GRID])[:, :, None] - values) / KERNEL_WIDTH
    return np.exp(-0.5 * folded**2).sum(0).mean(1) / (KERNEL_WIDTH * np.sqrt(2 * np.pi))
