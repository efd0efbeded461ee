"""Edges or nodes required of one run, beside all that there are."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from interbasis.figures.style import COLOURS, FAINT, WIDTH, new_figure, note, plain, shortened, styled
from interbasis.runtime.errors import InterbasisError

MAX_NAME = 34
"""Characters of a place's name."""


@styled
def required_of(counts: Mapping[str, tuple[int, int]], quantity: str = "edges", rule: str = "") -> Figure:
    """A bar per section (or layer) on a logarithmic axis: how many are required, before how many there are.

    Args:
        counts: (required, all there are) by the name of the section or layer.
        quantity: What is counted.
        rule: When something is required, for the note.

    Returns:
        The figure.

    Raises:
        InterbasisError: There are no counts.
    """
    if not counts:
        raise InterbasisError("expected at least one count, received none")
    figure = new_figure(WIDTH, 0.8 + 0.24 * len(counts))
    panel = figure.subplots()
    places = range(len(counts))
    few, many = zip(*counts.values(), strict=True)
    panel.barh(places, many, color=FAINT, height=0.62, gid="all")
    panel.barh(places, few, color=COLOURS[0], height=0.62, gid="required")
    for place in places:
        panel.annotate(
            f"{few[place]:,} of {many[place]:,}", (max(many[place], 1), place), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=7,
        )  # fmt: skip
    panel.set_xscale("symlog", linthresh=1)
    panel.set_xlim(0, max(*many, 1) * 8)  # room for the numbers
    panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_yticks(places, [plain(shortened(name, MAX_NAME)) for name in counts])
    panel.set_ylim(len(counts) - 0.4, -0.6)
    panel.set_xlabel(quantity)
    note(
        figure, " ".join(part for part in (f"Blue: required; grey: all {quantity} there are.", rule) if part)
    )
    return figure
