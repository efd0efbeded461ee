"""Pictures of the live pages for README and docs, a light and a dark one of each: docs/images/NAME-THEME.png.

    python docs/screenshots.py [NAME …]

They are twice as dense as a screen, so that they stay
sharp where they are made smaller.
"""

import io
import sys
from pathlib import Path
from typing import NamedTuple

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from show.viewer.chromium import browser

DOCS = Path(__file__).parent
SETTLED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 600)))"
COLOURS = 256


class View(NamedTuple):
    """A part of a page at some address."""

    address: str
    parts: tuple[str, ...]
    """What is in the picture, as CSS."""
    width: int
    height: int
    scrolled_to: str = "body"


VIEWS = {
    "modadd": View("modadd.html#nodes=17", (".graphs",), 1272, 620),
    "page": View("modadd.html#nodes=19&sel=0.1.1", (".top", "main"), 1366, 690),
    "cifar10": View("cifar10.html#nodes=10&sel=0.1.1", (".graphs", "main > .panel"), 1440, 500),
    "conv": View("conv.html#nodes=10&to=4&sel=0.2.1", (".graphs", "main > .panel"), 1440, 500, ".band"),
    "tinystories": View("stories.html#tab=prompts&trace=lily&marks=24", (".trace-main",), 1272, 780),
}


def main(names: list[str]) -> None:
    with browser() as chromium:
        for name in names:
            view = VIEWS[name]
            for theme in ("light", "dark"):
                page = chromium.new_page(
                    viewport={"width": view.width, "height": view.height},
                    color_scheme=theme, device_scale_factor=2,
                )  # fmt: skip
                page.goto((DOCS / "live").as_uri() + "/" + view.address)
                page.evaluate(SETTLED)
                page.evaluate("(part) => document.querySelector(part).scrollIntoView()", view.scrolled_to)
                boxes = [page.locator(part).first.bounding_box() for part in view.parts]
                left, top = (min(box[key] for box in boxes) for key in ("x", "y"))
                right = max(box["x"] + box["width"] for box in boxes)
                bottom = max(box["y"] + box["height"] for box in boxes)
                clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
                picture = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
                few = picture.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
                few.save(DOCS / "images" / f"{name}-{theme}.png", optimize=True)
                page.close()


if __name__ == "__main__":
    main(sys.argv[1:] or list(VIEWS))
