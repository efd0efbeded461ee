"""The one place where a reproduction's figures are made."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "figures"
PIXELS = 150
"""Per inch, of what the page shows; the same figures are there as SVG."""

COLOURS = 128
"""Of the PNG files; plain figures have no more, but for the edges of letters."""


class Drawn(NamedTuple):
    """A figure on disk."""

    section: str
    """Heading of the page that it belongs to."""
    caption: str
    file: Path


def draw_figures(found: dict[str, Any], folder: Path) -> list[Drawn]:
    """Draw what there are numbers for, as PNG and SVG in ``folder/figures``; in the order of the page.

    ``found`` is what `reproduction.json` of the whole holds; a piece's run is ``folder / piece["run"]``.
    """
    pictures = _pictures(found["task"])
    if pictures is None or not found["pieces"]:
        return []
    from interbasis.figures import save

    drawn = []
    for picture in pictures(found, folder):
        files = save(picture.figure, folder / FOLDER / picture.name, ("svg", "png"), PIXELS, COLOURS)
        drawn.append(Drawn(picture.section, picture.caption, files[-1]))
    return drawn


def _pictures(task: str) -> Callable[[dict[str, Any], Path], Iterator[Any]] | None:
    """What a task draws; matplotlib is loaded for those that do."""
    if task == "modadd":
        from interbasis.reproduction import modadd_figures

        return modadd_figures.pictures
    if task == "cifar10":
        from interbasis.reproduction import cifar10_figures

        return cifar10_figures.pictures
    return None
