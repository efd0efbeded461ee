"""Writing a figure to disk: vector and pixels, each whole or not at all."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from interbasis.base.errors import InterbasisError
from interbasis.base.files import make_folder, write_atomically
from interbasis.show.figures.style import STYLE

Format = Literal["svg", "png", "pdf"]
NO_LAYOUT: Any = {"figure.autolayout": False, "figure.constrained_layout.use": False}
DATELESS: dict[Format, dict[str, None]] = {"svg": {"Date": None}, "png": {}, "pdf": {"CreationDate": None}}
"""Equal figures give equal files."""


def save(
    figure: Figure,
    path: str | Path,
    formats: Sequence[Format] | None = None,
    dpi: int = 200,
    colours: int | None = None,
) -> list[Path]:
    """Write a figure as the suffix of ``path`` says; without a suffix, as PATH.svg and PATH.png.

    Args:
        figure: The figure.
        path: Where to write it: "graph.pdf", or "graph" for the formats given.
        formats: svg, png or pdf, in place of the suffix.
        dpi: Resolution of PNG files.
        colours: Up to 256; so few colours make PNG files several times smaller.

    Returns:
        The files.

    Raises:
        InterbasisError: A format or suffix is unknown, or a file cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.removeprefix(".").lower()
    stem = path.with_suffix("") if suffix in DATELESS else path
    if formats is None and suffix and suffix not in DATELESS:
        raise InterbasisError(
            f"figures are written as {', '.join(DATELESS)}, received the name {path.name}; end it with "
            "one of these, or leave the suffix out and give formats"
        )
    formats = known_formats(formats if formats is not None else [suffix] if suffix else ["svg", "png"])
    make_folder(stem.parent)
    files = [stem.with_name(f"{stem.name}.{name}") for name in formats]
    layout = figure.get_layout_engine()
    try:
        for name, file in zip(formats, files, strict=True):
            write_atomically(file, partial(_write, figure, name, dpi, colours))
            with rc_context(NO_LAYOUT):
                figure.set_layout_engine(None)  # found once for all formats: it takes longer than drawing
    finally:
        if layout is not None:
            figure.set_layout_engine(layout)
    return files


def _write(figure: Figure, name: Format, dpi: int, colours: int | None, file: Path) -> None:
    with rc_context(STYLE):
        figure.savefig(file, format=name, dpi=dpi, metadata=DATELESS[name])
    if name == "png" and colours is not None:
        with Image.open(file, formats=["PNG"]) as drawn:
            few = drawn.convert("RGB").quantize(colours)
        few.save(file, format="PNG", optimize=True)


def known_formats(names: Sequence[str]) -> list[Format]:
    """Names of formats, refused where one of them is unknown."""
    known = [name for name in DATELESS if name in names]
    if not names or set(names) - set(known):
        raise InterbasisError(f"figures are written as {', '.join(DATELESS)}, received {list(names)}")
    return [name for wanted in names for name in known if name == wanted]
