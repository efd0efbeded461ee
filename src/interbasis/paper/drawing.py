"""The one place where a reproduction's figures are made."""

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from interbasis.runtime.files import write_text_atomically

FOLDER, LIST = "figures", "drawn.json"
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
    Figures of the same pieces by the same code are there already and stay.
    """
    pictures = _pictures(found["task"])
    if pictures is None or not found["pieces"]:
        return []
    made_of = _made_of(found)
    there = _there(folder, made_of)
    if there is not None:
        return there
    from interbasis.figures import save

    drawn = []
    for picture in pictures(found, folder):
        files = save(picture.figure, folder / FOLDER / picture.name, ("svg", "png"), PIXELS, COLOURS)
        drawn.append(Drawn(picture.section, picture.caption, files[-1]))
    listed = [(one.section, one.caption, one.file.name) for one in drawn]
    text = json.dumps({"made_of": made_of, "figures": listed}, indent=1)
    write_text_atomically(folder / FOLDER / LIST, text + "\n")
    return drawn


def _made_of(found: dict[str, Any]) -> str:
    """A hash of the numbers and of the code that draws them."""
    package = Path(__file__).parents[1]
    code = sorted([*(package / "figures").glob("*.py"), *(package / "paper").glob("*.py")])
    pieces = json.dumps([found[key] for key in ("task", "bases", "pieces")], sort_keys=True)
    return sha256(b"".join([pieces.encode(), *(file.read_bytes() for file in code)])).hexdigest()


def _there(folder: Path, made_of: str) -> list[Drawn] | None:
    """What was drawn before, if it is of the same and complete."""
    try:
        listed = json.loads((folder / FOLDER / LIST).read_text(encoding="utf-8"))
        if listed["made_of"] != made_of:
            return None
        drawn = [Drawn(section, text, folder / FOLDER / name) for section, text, name in listed["figures"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return drawn if all(one.file.is_file() for one in drawn) else None


def _pictures(task: str) -> Callable[[dict[str, Any], Path], Iterator[Any]] | None:
    """What a task draws; matplotlib is loaded for those that do."""
    if task == "modadd":
        from interbasis.paper import modadd_figures

        return modadd_figures.pictures
    if task == "cifar10":
        from interbasis.paper import cifar10_figures

        return cifar10_figures.pictures
    return None
