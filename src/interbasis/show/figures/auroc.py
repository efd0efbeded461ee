"""How well single features tell classes apart."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import INK, grid_of, looks, note, plain, shortened, styled

Bars = Mapping[str, Sequence[float]]


@styled
def auroc_bars(
    layers: Mapping[str, Bars],
    attribute: str,
    *,
    names: Mapping[str, Sequence[str]] | None = None,
    reference: float | None = None,
    first: int = 1,
) -> Figure:
    """A panel per layer with a bar per feature and basis, from 0.5 (chance) to 1.

    Args:
        layers: {layer: {basis: AUROC of its first features}}; an area a below 0.5 is drawn as 1 − a, since
            the sign of a feature is arbitrary.
        attribute: What the features separate, written at the axis.
        names: A text per feature, below the bars of a layer.
        reference: A line, such as the whole model's AUROC.
        first: Index of the first feature.

    Returns:
        The figure.

    Raises:
        InterbasisError: There is no AUROC, or one is not between 0 and 1.
    """
    areas = [a for bars in layers.values() for values in bars.values() for a in values]
    if not areas or not all(0 <= a <= 1 for a in areas):
        raise InterbasisError("expected at least one AUROC, all between 0 and 1")
    figure, panels = grid_of(len(layers), most=2, height=2.2)
    styles = looks(dict.fromkeys(basis for bars in layers.values() for basis in bars))
    colours = {basis: style["color"] for basis, style in styles.items()}
    for panel, (layer, bars) in zip(panels, layers.items(), strict=True):
        _panel(panel, bars, colours, (names or {}).get(layer), first)
        panel.set_title(plain(layer))
        if reference is not None:
            panel.axhline(max(reference, 1 - reference), color=INK, linewidth=0.8, linestyle="--")
    if len(colours) > 1:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(colours))
    line = "" if reference is None else " Dashed: the whole model."
    note(figure, f"AUROC of single features as classifiers of {attribute}, sign chosen; 0.5 is chance.{line}")
    return figure


def _panel(
    panel: Axes, bars: Bars, colours: Mapping[str, str], names: Sequence[str] | None, first: int
) -> None:
    width = 0.8 / len(bars)
    for number, (basis, values) in enumerate(bars.items()):
        places = [first + k + (number - (len(bars) - 1) / 2) * width for k in range(len(values))]
        heights = [max(a, 1 - a) - 0.5 for a in values]
        panel.bar(
            places,
            heights,
            width * 0.95,
            bottom=0.5,
            color=colours[basis],
            label=plain(basis),
            gid=f"auroc:{basis}",
        )
    panel.set_ylim(0.5, 1)
    panel.set_ylabel("AUROC")
    panel.set_xlabel("feature")
    if names is None:
        panel.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        return
    texts = [plain(f"{shortened(text, 14)} {first + k}") for k, text in enumerate(names)]
    panel.set_xticks(range(first, first + len(names)), texts, rotation=90, fontsize=6)
