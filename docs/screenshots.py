"""Pictures of the page for the docs, a light and a dark one of each run.

    python docs/screenshots.py OUT RUN [RUN …]

A RUN may carry a view after a #, as the page's own address does: runs/tinystories#from=3&to=8&sel=0.4.2
"""

import sys
import tempfile
from pathlib import Path

from interbasis.viewer import write_page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from viewer.chromium import browser

SETTLED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 400)))"


def main(out: Path, runs: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for run in runs:
            place, _, view = run.partition("#")
            file = write_page([place], Path(folder) / "page.html")
            for theme in ("light", "dark"):
                page = chromium.new_page(viewport={"width": 1280, "height": 800}, color_scheme=theme)
                page.goto(f"{file.as_uri()}#{view}")
                page.evaluate(SETTLED)
                page.screenshot(path=out / f"{Path(place).name}-{theme}.png")
                page.close()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
