"""Bars side by side: AUROC of features."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import add_legend, looks, note, panel_grid, plain, shortened, styled

T = TypeVar("T")


def grouped_bars(
    panel: Axes,
    styles: Mapping[str, Mapping[str, str]],
    bases: Mapping[str, Mapping[int, T]],
    height: Callable[[T], float],
    *,
    gid: str = "bars",
    bottom: float = 0.0,
    widths: tuple[float, float] = (0.8, 0.76),
) -> Iterator[tuple[str, str, float, dict[float, T]]]:
    """Draw a bar per basis at every place; all of a place share a width, of which bars fill a part.

    Yields:
        Each basis with its colour, its distance from a place, and its values by the centres of their bars.
    """
    for number, (basis, values) in enumerate(bases.items()):
        offset = (number - (len(bases) - 1) / 2) * widths[0] / len(bases)
        bars = {x + offset: value for x, value in values.items()}
        colour = styles[basis]["color"]
        panel.bar(
            list(bars), [height(value) - bottom for value in bars.values()], widths[1] / len(bases),
            bottom=bottom, color=colour, label=plain(basis), gid=f"{gid}:{basis}",
        )  # fmt: skip
        yield basis, colour, offset, bars


@styled
def auroc_bars(
    layers: Mapping[str, Mapping[str, Sequence[float]]],
    attribute: str,
    *,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Figure:
    """A panel per layer with a bar per feature and basis, from 0.5 (chance) to 1.

    Args:
        layers: {layer: {basis: AUROC of its first features}}; an area a below 0.5 is drawn as 1 − a, since
            the sign of a feature is arbitrary.
        attribute: What the features separate, written at the axis.
        names: A text per feature, below the bars of a layer.

    Returns:
        The figure.

    Raises:
        InterbasisError: There is no AUROC, or one is not between 0 and 1.
    """
    areas = [a for bars in layers.values() for values in bars.values() for a in values]
    if not areas or not all(0 <= a <= 1 for a in areas):
        raise InterbasisError("expected at least one AUROC, all between 0 and 1")
    figure, panels = panel_grid(len(layers), across=2, height=2.2)
    styles = looks(dict.fromkeys(basis for bars in layers.values() for basis in bars))
    for panel, (layer, bases) in zip(panels, layers.items(), strict=True):
        numbered = {basis: dict(enumerate(values, 1)) for basis, values in bases.items()}
        list(grouped_bars(panel, styles, numbered, lambda a: max(a, 1 - a), gid="auroc", bottom=0.5))
        panel.set_ylim(0.5, 1)
        panel.set_ylabel("AUROC")
        panel.set_xlabel("feature")
        panel.set_title(plain(layer))
        if texts := (names or {}).get(layer):
            ticks = [plain(f"{shortened(text, 14)} {k}") for k, text in enumerate(texts, 1)]
            panel.set_xticks(range(1, 1 + len(texts)), ticks, rotation=90, fontsize=6)
        else:
            panel.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    if len(styles) > 1:
        add_legend(figure, panels)
    note(figure, f"AUROC of single features as classifiers of {attribute}, sign chosen; 0.5 is chance.")
    return figure
