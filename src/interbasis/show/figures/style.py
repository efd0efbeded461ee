"""The one style of all figures: sizes in points for print, colours that colour-blind readers tell apart."""

import textwrap
from collections.abc import Callable, Iterable
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any, ParamSpec

from matplotlib import rc_context, rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.textpath import TextPath

P = ParamSpec("P")

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe and Ito's palette without black, blue and orange first."""
LOOK_ORDER = ("lib", "pca", "gib", "random", "neuron", "jib")
"""They have the first looks, in this order, in every figure."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
GREY, FAINT, INK = "#9A9A9A", "#D9D9D9", "#222222"
WIDTH = 7.0
"""Inches across a page."""
SCREEN_DPI = 100
"""Pixels per inch of a figure in a notebook."""
STYLE: Any = rc_params_from_file(Path(__file__).with_name("interbasis.mplstyle"), use_default_template=False)


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw with the style, and leave the caller's settings as they were."""

    @wraps(draw)
    def draw_styled(*arguments: P.args, **options: P.kwargs) -> Figure:
        with rc_context(STYLE):
            return draw(*arguments, **options)

    return draw_styled


class NotebookFigure(Figure):
    """A figure that pyplot knows nothing of, and that shows itself in a notebook."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The figure in twice the resolution, and the width that it takes."""
        return png(self), {"width": round(self.get_figwidth() * SCREEN_DPI)}


def png(figure: Figure) -> bytes:
    """A figure as PNG, in twice the resolution of a screen."""
    file = BytesIO()
    with rc_context(STYLE):
        figure.savefig(file, format="png", dpi=2 * SCREEN_DPI)
    return file.getvalue()


def new_figure(width: float = WIDTH, height: float = 2.6) -> Figure:
    """An empty figure in inches that shows itself in a notebook."""
    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panel_grid(count: int, across: int = 3, height: float = 2.2) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels in rows of at most ``across``."""
    columns = min(count, across)
    rows = -(-count // columns)
    width = WIDTH * max(columns, 2) / across if across > 1 else WIDTH / 2
    figure = new_figure(min(width, WIDTH), height * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in panels[count:]:
        spare.remove()
    return figure, panels[:count]


def add_legend(figure: Figure, panels: Iterable[Axes], columns: int | None = None) -> None:
    """Add one legend for the series of all panels, each once; in one row unless ``columns`` is given."""
    handles = {
        label: handle
        for panel in panels
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    if handles:
        ncols = columns or len(handles)
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=ncols)


def note(figure: Figure, *sentences: str) -> None:
    """Write what a reader must know below the figure."""
    characters = int(figure.get_figwidth() * 19)
    text = " ".join(filter(None, sentences)).replace(" %", "\N{NO-BREAK SPACE}%")
    lines = "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, characters))
    figure.supxlabel(plain(lines), x=0.01, ha="left", fontsize=6.5, color="#555555")


def look(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of the number-th series: told apart without colour too."""
    k = number % len(COLOURS)
    return {"color": COLOURS[k], "marker": MARKERS[k], "linestyle": DASHES[k]}


def looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The look of every series by its name: bases have their own, the others what these leave."""
    names = list(names)
    places = {name: LOOK_ORDER.index(name.lower()) for name in names if name.lower() in LOOK_ORDER}
    free = [k for k in range(len(COLOURS)) if k not in places.values()] or list(range(len(COLOURS)))
    further = (name for name in names if name not in places)
    places |= {name: free[number % len(free)] for number, name in enumerate(further)}
    return {name: look(places[name]) for name in names}


def plain(text: str) -> str:
    """Text as it is: no mathematics between dollar signs, and a box for what the font does not have."""
    font = get_font(findfont("DejaVu Sans"))
    return "".join(c if c == "\n" or font.get_char_index(ord(c)) else "□" for c in text).replace("$", r"\$")


def shortened(text: str, length: int) -> str:
    """Text as one line of at most ``length`` characters."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    whole, plus, _ = line[: length - 1].rpartition(" + ")  # a number cut in two would be another number
    return f"{whole} + …" if plus else line[: length - 1].rstrip() + "…"


def fitted(text: str, inches: float, size: float) -> str:
    """As much of a text as fits into a width at a size in points, ready to be drawn."""
    length = len(text)
    while length > 1:
        drawn = plain(shortened(text, length))
        corners = TextPath((0, 0), drawn, size=size).vertices[:, 0]  # those of the curves' hulls
        width = float(corners.max() - corners.min()) / 72 if len(corners) else 0.0
        if width <= inches:
            return drawn
        length = min(length - 1, int(length * inches / width) + 1)
    return plain(shortened(text, 1)) if text else ""
