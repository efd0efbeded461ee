"""How modular graphs are, beside rewired ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import INK, grid_of, looks, note, plain, styled


@dataclass(frozen=True)
class Modularity:
    """Of one graph: its own, and mean and standard deviation of rewired ones."""

    value: float
    null_mean: float
    null_deviation: float
    modules: int


@styled
def modularity_bars(
    panels: Mapping[str, Mapping[str, Sequence[Modularity | None]]], places: Sequence[str]
) -> Figure:
    """A panel per title (a resolution, say); in it per place (a seed) a bar for each basis.

    The number in a bar is how many modules there are; the black mark is the rewired graphs' mean with two
    standard deviations.

    Args:
        panels: {title: {basis: one entry per place, or None where there is none}}.
        places: Names of the places.

    Returns:
        The figure.

    Raises:
        InterbasisError: There are no panels, or a basis has another number of entries than there are places.
    """
    if not panels or any(len(row) != len(places) for p in panels.values() for row in p.values()):
        raise InterbasisError(f"expected at least one panel with {len(places)} graphs per basis")
    figure, axes = grid_of(len(panels), most=min(len(panels), 2), height=2.6)
    for panel, (title, bases) in zip(axes, panels.items(), strict=True):
        styles = looks(bases)
        for number, (basis, row) in enumerate(bases.items()):
            offset, width = (number - (len(bases) - 1) / 2) * 0.84 / len(bases), 0.78 / len(bases)
            _bars(panel, basis, row, offset, width, styles[basis]["color"])
        panel.set_xticks(range(len(places)), [plain(place) for place in places])
        panel.set_title(plain(title))
        panel.set_ylim(bottom=0)
    axes[0].set_ylabel("modularity")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    note(
        figure,
        "Numbers: modules. Black: mean of rewired graphs with the same degrees and weights, with two "
        "standard deviations up and down; a bar that ends within them is no more modular than chance.",
    )
    return figure


def _bars(
    panel: Axes,
    basis: str,
    row: Sequence[Modularity | None],
    offset: float,
    width: float,
    colour: str,
) -> None:
    known = [(x + offset, one) for x, one in enumerate(row) if one is not None]
    places = [x for x, _ in known]
    panel.bar(
        places, [one.value for _, one in known], width, color=colour, label=plain(basis), gid=f"bars:{basis}"
    )
    panel.errorbar(
        places, [one.null_mean for _, one in known], [2 * one.null_deviation for _, one in known],
        linestyle="none", color=INK, marker="_", markersize=4, elinewidth=1.0, gid=f"null:{basis}",
    )  # fmt: skip
    for x, one in known:
        panel.annotate(
            str(one.modules), (x, 0), (0, 3), textcoords="offset points", ha="center", va="bottom",
            fontsize=5.5, color="white" if basis.lower() != "pca" else INK,
        )  # fmt: skip
