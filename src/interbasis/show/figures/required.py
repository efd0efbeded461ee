"""Edges or nodes required: basis beside basis over seeds, or of one run beside all that there are."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from interbasis.base.errors import InterbasisError
from interbasis.show.figures import style

Counts = Mapping[str, Sequence[Sequence[int | None]]]
MAX_NAME_CHARACTERS = 34
"""Length of a place's name."""


@style.styled
def required(
    counts: Counts,
    places: Sequence[str],
    quantity: str = "edges required",
    rule: str = "",
    *,
    published: Counts | None = None,
    source: str = "published counts",
) -> Figure:
    """A panel per section (or layer); a dot per seed, seeds joined between bases, a bar at the mean.

    Args:
        counts: A basis's counts, [seeds][places]; None is a count that was not measured.
        places: Names of the sections or layers.
        quantity: What is counted, written at the axis.
        rule: When something is required, for the note.
        published: Counts of someone else's models for some of the bases, drawn as hollow diamonds.
        source: Whose they are.

    Returns:
        The figure.

    Raises:
        InterbasisError: Bases have different numbers of seeds, or counts do not match the places.
    """
    lengths = {basis: [len(row) for row in rows] for basis, rows in counts.items()}
    seeds = {len(rows) for rows in lengths.values()}
    if len(seeds) != 1 or any(length != len(places) for rows in lengths.values() for length in rows):
        received = ", ".join(f"{basis}: {rows}" for basis, rows in lengths.items()) or "none"
        raise InterbasisError(
            f"expected the same seeds for every basis and {len(places)} counts for each of them, received "
            + received
        )
    figure, panels = style.panel_grid(len(places), across=4 if len(places) == 4 else 3, height=2.3)
    shown = {basis: rows for basis, rows in (published or {}).items() if basis in counts}
    for k, panel in enumerate(panels):
        columns, marks = (
            {basis: [row[k] for row in rows] for basis, rows in c.items()} for c in (counts, shown)
        )
        _draw_counts(panel, columns, marks)
        panel.set_title(style.plain(places[k]), fontsize=7.5)
        panel.set_ylabel(quantity)
    text = "Numbers: counts."
    if seeds != {1}:
        text = f"Dots: {seeds.pop()} seeds, joined between bases; bars and numbers: their mean."
    style.note(figure, text, f"Diamonds: {source}." if shown else "", rule)
    return figure


def _draw_counts(
    panel: Axes, columns: Mapping[str, Sequence[int | None]], marks: Mapping[str, Sequence[int | None]]
) -> None:
    names, styles = list(columns), style.looks(columns)
    seeds = len(columns[names[0]])
    for seed in range(seeds if seeds > 1 else 0):
        known = [(x, y) for x, name in enumerate(names) if (y := columns[name][seed]) is not None]
        panel.plot([x for x, _ in known], [y for _, y in known], color=style.GREY, linewidth=0.6, zorder=1)
    largest = 1
    for x, name in enumerate(names):
        values = [value for value in columns[name] if value is not None]
        published = [value for value in marks.get(name, ()) if value is not None]
        colour = styles[name]["color"]
        panel.scatter([x] * len(values), values, s=18, color=colour, zorder=3, gid=f"counts:{name}")
        panel.scatter(
            [x - 0.2] * len(published), published, s=20, marker="D", facecolors="white", edgecolors=colour,
            zorder=3, gid=f"published:{name}",
        )  # fmt: skip
        largest = max([largest, *values, *published])
        if not values:
            panel.annotate("not\nmeasured", (x, 0), ha="center", va="bottom", fontsize=6.5, color=style.GREY)
            continue
        mean = sum(values) / len(values)
        if seeds > 1:
            panel.plot([x - 0.14, x + 0.18], [mean, mean], color=style.INK, linewidth=1.4, zorder=2)
        text = f"{mean:,.0f}" if mean == round(mean) else f"{mean:,.1f}"
        panel.annotate(
            text, (x + (0.22 if seeds > 1 else 0.1), mean), va="center", fontsize=7, zorder=4,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
    panel.set_xticks(range(len(names)), [style.plain(name) for name in names])
    panel.set_xlim(-0.5, len(names) - 0.2)
    panel.set_ylim(0, largest * 1.15)
    panel.yaxis.set_major_locator(MaxNLocator(5, integer=True))


@style.styled
def required_shares(counts: Mapping[str, tuple[int, int]], quantity: str = "edges", rule: str = "") -> Figure:
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
    figure = style.new_figure(style.WIDTH, 0.8 + 0.24 * len(counts))
    panel = figure.subplots()
    places = range(len(counts))
    shares = [100 * count / max(total, 1) for count, total in counts.values()]
    panel.barh(places, [100] * len(counts), color=style.FAINT, height=0.62, gid="all")
    panel.barh(places, shares, color=style.COLOURS[0], height=0.62, gid="required")
    for place, (count, total) in enumerate(counts.values()):
        panel.annotate(
            f"{count:,} of {total:,}", (100, place), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=7,
        )  # fmt: skip
    panel.set_xlim(0, 100)
    panel.set_xticks(range(0, 101, 20), [f"{share} %" for share in range(0, 101, 20)])
    panel.spines["bottom"].set_visible(False)
    panel.set_yticks(places, [style.plain(style.shortened(name, MAX_NAME_CHARACTERS)) for name in counts])
    panel.set_ylim(len(counts) - 0.4, -0.6)
    panel.set_xlabel(f"{quantity} required")
    style.note(figure, f"Blue: required; grey: all {quantity} there are.", rule)
    return figure
