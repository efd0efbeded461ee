"""Live pages of the gallery: where one is not built, a page that says how to build it."""

from pathlib import Path

PAGES = ("modadd", "cifar10", "conv", "stories")
MISSING = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>interbasis</title>
</head>
<body style="font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem">
<p>This page was not built with this copy of the documentation. <code>make gallery PAGES={page}</code>
builds it; the <a href="gallery.html">gallery</a> says which data it requires.</p>
</body>
</html>
"""


def add_missing(folder: Path) -> None:
    """Write a page with instructions for every page that is not there."""
    folder.mkdir(exist_ok=True)
    for page in PAGES:
        file = folder / f"{page}.html"
        if not file.exists():
            file.write_text(MISSING.format(page=page), encoding="utf-8")
