"""Means with their range over seeds, basis beside basis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import INK, grid_of, looks, note, plain, styled

Groups = Mapping[str, Sequence[Sequence[float]]]
"""{basis: values [groups][seeds]}."""
ONE_PANEL_INCHES = (5.2, 2.5)
"""Width and height of a figure with one panel."""
Scale = Literal["linear", "percent", "points", "log"]
"""Percent and points are of shares; points have a sign."""


@dataclass(frozen=True)
class BarOptions:
    """How bars are drawn, and what is drawn beside them."""

    scale: Scale = "linear"
    bottom: float = 0.0
    """Where bars begin."""
    top: float | None = None
    lines: Mapping[str, float] | None = None
    """Dashed across the panel of that title."""
    published: Mapping[str, Mapping[str, Sequence[float | None]]] | None = None
    """Diamonds, {title: {basis: a value or None for each group}}."""
    explanation: str = ""
    across: int = 2
    """Panels in a row."""


@dataclass(frozen=True)
class _Series:
    basis: str
    colour: str
    offset: float
    width: float


@styled
def spread_bars(panels: Mapping[str, Groups], groups: Sequence[str], quantity: str, **options: Any) -> Figure:
    """A panel per title; in it per group a bar for each basis at the mean, with the range over the seeds.

    Args:
        panels: Values by title and basis, [groups][seeds].
        groups: Names of the groups.
        quantity: What is shown, written at the axis.
        **options: The fields of `BarOptions`: scale, bottom, top, lines, published, explanation, across.

    Returns:
        The figure.

    Raises:
        InterbasisError: There are no panels, or values do not match the groups.
    """
    shown = BarOptions(**options)
    if not panels or any(len(rows) != len(groups) for p in panels.values() for rows in p.values()):
        raise InterbasisError(f"expected at least one panel with values for {len(groups)} groups per basis")
    figure, axes = grid_of(len(panels), most=shown.across, height=2.3)
    if len(panels) == 1:
        figure.set_size_inches(ONE_PANEL_INCHES)
    styles = looks(dict.fromkeys(basis for panel in panels.values() for basis in panel))
    for number, (panel, (title, bases)) in enumerate(zip(axes, panels.items(), strict=True)):
        marks = (shown.published or {}).get(title, {})
        for place, (basis, rows) in enumerate(bases.items()):
            offset = (place - (len(bases) - 1) / 2) * 0.8 / len(bases)
            series = _Series(basis, styles[basis]["color"], offset, 0.76 / len(bases))
            _bars(panel, series, rows, shown.bottom)
            _diamonds(panel, series, marks.get(basis, ()))
        if shown.lines and title in shown.lines:
            panel.axhline(shown.lines[title], color=INK, linewidth=0.8, linestyle="--", zorder=0, gid="line")
        _scale(panel, shown)
        panel.set_xticks(range(len(groups)), [plain(group) for group in groups])
        panel.set_title(plain(title))
        if number % shown.across == 0:
            panel.set_ylabel(quantity)
    handles = {
        label: handle
        for panel in axes
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles))
    note(figure, shown.explanation)
    return figure


def _bars(panel: Axes, series: _Series, rows: Sequence[Sequence[float]], bottom: float) -> None:
    known = [(x, row) for x, row in enumerate(rows) if len(row)]
    places = [x + series.offset for x, _ in known]
    means = [sum(row) / len(row) for _, row in known]
    panel.bar(
        places, [mean - bottom for mean in means], series.width, bottom=bottom, color=series.colour,
        label=plain(series.basis), gid=f"bars:{series.basis}",
    )  # fmt: skip
    for place, (_, row) in zip(places, known, strict=True):
        if len(row) > 1:
            panel.plot(
                [place, place], [min(row), max(row)], color=INK, linewidth=1.1, marker="_", markersize=4,
                gid=f"range:{series.basis}",
            )  # fmt: skip


def _diamonds(panel: Axes, series: _Series, values: Sequence[float | None]) -> None:
    known = [(x + series.offset, value) for x, value in enumerate(values) if value is not None]
    if known:
        panel.scatter(
            [x for x, _ in known], [y for _, y in known], s=26, marker="D", facecolors="white",
            edgecolors=series.colour, zorder=4, linewidths=1.2, gid=f"published:{series.basis}",
        )  # fmt: skip


def _scale(panel: Axes, options: BarOptions) -> None:
    scale = options.scale
    if scale == "log":
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    elif scale == "percent":
        panel.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    elif scale == "points":
        panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:+.3g}" if y else "0"))
        panel.axhline(0, color=INK, linewidth=0.6)
        return
    panel.set_ylim(bottom=options.bottom, top=options.top)
