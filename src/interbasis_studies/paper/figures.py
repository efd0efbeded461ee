"""The one place where a reproduction's figures are drawn and written."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from interbasis import figures as library
from interbasis.base.files import write_text_atomically
from interbasis.base.records import Record
from interbasis_studies.paper.records import SavedFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interbasis_studies.paper.records import JobResult

FOLDER, LIST = "figures", "drawn.json"
DOTS_PER_INCH = 150
"""Resolution of the PNG files on the page; the same figures are there as SVG."""
COLOURS_PER_PNG = 128
"""Plain figures have no more, but for the edges of letters."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure that is to be written."""

    section: str
    """Heading of the page that it belongs to."""
    name: str
    """Name of its files."""
    caption: str
    figure: "Figure"


class DrawnFigures(Record):
    """List of the figures in the folder."""

    made_of: str
    """Hash of the numbers and of the code that draws them."""
    figures: tuple[SavedFigure, ...]


def draw_figures(
    pictures: Iterator[Picture], jobs: "tuple[JobResult, ...]", out: Path
) -> tuple[SavedFigure, ...]:
    """Draw as PNG and SVG in ``out/figures``; figures of the same jobs by the same code stay as they are."""
    if not jobs:
        return ()
    file = out / FOLDER / LIST
    code = [*Path(library.__file__).parent.glob("*.py"), *Path(__file__).parent.rglob("*.py")]
    numbers = [job.model_dump_json().encode() for job in jobs]
    made_of = sha256(b"".join([*numbers, *(path.read_bytes() for path in sorted(code))])).hexdigest()
    try:
        drawn = DrawnFigures.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError):  # there are none, or a version listed them in another way
        drawn = None
    if drawn and drawn.made_of == made_of and all((out / figure.file).is_file() for figure in drawn.figures):
        return drawn.figures
    from interbasis.show.figures import save

    figures = []
    for picture in pictures:
        files = save(
            picture.figure, out / FOLDER / picture.name, ("svg", "png"), DOTS_PER_INCH, COLOURS_PER_PNG
        )
        name = f"{FOLDER}/{files[-1].name}"
        figures.append(SavedFigure(section=picture.section, caption=picture.caption, file=name))
    drawn = DrawnFigures(made_of=made_of, figures=tuple(figures))
    write_text_atomically(file, drawn.model_dump_json(indent=1) + "\n")
    return drawn.figures
