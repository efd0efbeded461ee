"""Edges or nodes required, basis beside basis, over seeds."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from interbasis.base.errors import InterbasisError
from interbasis.show.figures.style import GREY, INK, grid_of, looks, note, plain, styled

Counts = Mapping[str, Sequence[Sequence[int | None]]]


@styled
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
    seeds = {len(rows) for rows in counts.values()}
    if (
        not counts
        or len(seeds) != 1
        or any(len(row) != len(places) for rows in counts.values() for row in rows)
    ):
        raise InterbasisError(
            f"expected the same seeds for every basis and {len(places)} counts for each of them, received "
            + (
                ", ".join(f"{basis}: {[len(row) for row in rows]}" for basis, rows in counts.items())
                or "none"
            )
        )
    figure, panels = grid_of(len(places), most=4 if len(places) == 4 else 3, height=2.3)
    shown = {basis: rows for basis, rows in (published or {}).items() if basis in counts}
    for k, panel in enumerate(panels):
        columns, marks = (
            {basis: [row[k] for row in rows] for basis, rows in c.items()} for c in (counts, shown)
        )
        _panel(panel, columns, marks)
        panel.set_title(plain(places[k]), fontsize=7.5)
        panel.set_ylabel(quantity)
    many = seeds.pop()
    text = "Numbers: counts." if many == 1 else (
        f"Dots: {many} seeds, joined between bases; bars and numbers: their mean."
    )  # fmt: skip
    diamonds = f"Diamonds: {source}." if shown else ""
    note(figure, " ".join(part for part in (text, diamonds, rule) if part))
    return figure


def _panel(
    panel: Axes, columns: Mapping[str, Sequence[int | None]], marks: Mapping[str, Sequence[int | None]]
) -> None:
    names, styles = list(columns), looks(columns)
    seeds = len(columns[names[0]])
    for seed in range(seeds if seeds > 1 else 0):
        known = [(x, y) for x, name in enumerate(names) if (y := columns[name][seed]) is not None]
        panel.plot([x for x, _ in known], [y for _, y in known], color=GREY, linewidth=0.6, zorder=1)
    largest = 0
    for x, name in enumerate(names):
        values = [value for value in columns[name] if value is not None]
        theirs = [value for value in marks.get(name, ()) if value is not None]
        colour = styles[name]["color"]
        panel.scatter([x] * len(values), values, s=18, color=colour, zorder=3, gid=f"counts:{name}")
        panel.scatter(
            [x - 0.2] * len(theirs), theirs, s=20, marker="D", facecolors="white", edgecolors=colour,
            zorder=3, gid=f"published:{name}",
        )  # fmt: skip
        largest = max(largest, *values, *theirs, 0)
        if not values:
            panel.annotate("not\nmeasured", (x, 0), ha="center", va="bottom", fontsize=6.5, color=GREY)
            continue
        mean = sum(values) / len(values)
        if seeds > 1:
            panel.plot([x - 0.14, x + 0.18], [mean, mean], color=INK, linewidth=1.4, zorder=2)
        text = f"{mean:,.0f}" if mean == round(mean) else f"{mean:,.1f}"
        panel.annotate(
            text, (x + (0.22 if seeds > 1 else 0.1), mean), va="center", fontsize=7, zorder=4,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )  # fmt: skip
    panel.set_xticks(range(len(names)), [plain(name) for name in names])
    panel.set_xlim(-0.5, len(names) - 0.2)
    panel.set_ylim(0, max(largest, 1) * 1.15)
    panel.yaxis.set_major_locator(MaxNLocator(5, integer=True))
