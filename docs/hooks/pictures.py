"""What GitHub's Markdown cannot say: pictures in two versions, captions of code, links to live pages
and to the notebooks as pages."""

import re
from pathlib import Path

from sphinx.application import Sphinx

PICTURE = re.compile(r"^!\[([^\]]*)\]\(([^)\s]+)-light\.(png|svg)\)$", re.MULTILINE)
TITLED = re.compile(r'^```(\w+) title="([^"]+)"$', re.MULTILINE)
NOTEBOOK = re.compile(r"\]\(\.\./examples/([\w-]+)\.ipynb\)")
LIVE = re.compile(r"\[([^\]]+)\]\((?:live/)([\w./-]+\.html)\)")


def setup(app: Sphinx) -> None:
    app.connect("source-read", put_in)


def put_in(app: Sphinx, page: str, source: list[str]) -> None:
    folder = Path(app.srcdir, page).parent
    text = PICTURE.sub(lambda found: both(found, folder), source[0])
    text = TITLED.sub(r"```{code-block} \1\n:caption: \2", text)
    text = NOTEBOOK.sub(r"](notebooks/\1.md)", text)
    source[0] = LIVE.sub(r'<a href="\2">\1</a>', text)


def both(found: re.Match[str], folder: Path) -> str:
    """The light picture for light colours, and the dark one that lies beside it for dark colours."""
    words, path, kind = found.groups()
    if not (folder / f"{path}-dark.{kind}").exists():
        return found[0]
    return "\n".join(
        f"![{words}]({path}-{theme}.{kind}){{.only-{theme} .page}}" for theme in ("light", "dark")
    )
