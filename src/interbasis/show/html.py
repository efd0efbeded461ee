"""HTML of reports and pages, from templates (Jinja2) that escape every text.

`document.html` is a page that fetches nothing, with a list of its headings; `parts.html` holds its pieces.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape


def encodable(text: str) -> str:
    """Text that can be written as UTF-8: names and tokens may hold half a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


def escaped(value: object) -> Markup:
    """Anything as text that HTML cannot misunderstand."""
    return escape(encodable(str(value)))


def render(template: str, **values: object) -> str:
    """HTML from the source of a template; only what is HTML already (`Markup`) is not escaped."""
    return encodable(_environment.from_string(template).render(values))


@dataclass(frozen=True, repr=False)
class HtmlPage:
    """A page of HTML that fetches nothing; a notebook shows it in a frame."""

    title: str
    text: str
    height: int = 620
    """Of the frame, in pixels."""

    def __repr__(self) -> str:
        return f"HtmlPage({self.title!r}, {len(self.text):,} characters)"

    def _repr_html_(self) -> str:
        quoted = self.text.replace("&", "&amp;").replace("'", "&#39;")  # JSON is full of the other quotes
        return (
            f"<iframe title='{escaped(self.title)}' srcdoc='{quoted}' "
            'sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{self.height}px;border:1px solid #8884;border-radius:6px"></iframe>'
        )


def _with_contents(html: Markup) -> tuple[Markup, list[tuple[str, str, Markup]]]:
    """HTML whose headings of levels 2 and 3 have addresses, and a list of (level, address, words)."""
    contents: list[tuple[str, str, Markup]] = []

    def addressed(match: re.Match[str]) -> str:
        level, words = match.groups()
        contents.append((level, f"part-{len(contents)}", Markup(words)))
        return f'<h{level} id="{contents[-1][1]}">{words}</h{level}>'

    return Markup(re.sub(r"<h([23])>(.*?)</h\1>", addressed, html, flags=re.DOTALL)), contents


_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_environment.globals["with_contents"] = _with_contents
