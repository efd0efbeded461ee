"""Edges or nodes required of one run, beside all that there are."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import COLOURS, FAINT, WIDTH, new_figure, note, plain, shortened, styled

MAX_NAME = 34
"""Characters of a place's name."""


@styled
def required_of(counts: Mapping[str, tuple[int, int]], quantity: str = "edges", rule: str = "") -> Figure:
    """A bar per section (or layer): the share that is required, beside the counts.

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
    panel.barh(places, [100] * len(counts), color=FAINT, height=0.62, gid="all")
    shares = [100 * few / max(many, 1) for few, many in counts.values()]
    panel.barh(places, shares, color=COLOURS[0], height=0.62, gid="required")
    for place, (few, many) in enumerate(counts.values()):
        panel.annotate(
            f"{few:,} of {many:,}", (100, place), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=7,
        )  # fmt: skip
    panel.set_xlim(0, 100)
    panel.set_xticks(range(0, 101, 20), [f"{share} %" for share in range(0, 101, 20)])
    panel.spines["bottom"].set_visible(False)
    panel.set_yticks(places, [plain(shortened(name, MAX_NAME)) for name in counts])
    panel.set_ylim(len(counts) - 0.4, -0.6)
    panel.set_xlabel(f"{quantity} required")
    note(
        figure, " ".join(part for part in (f"Blue: required; grey: all {quantity} there are.", rule) if part)
    )
    return figure
