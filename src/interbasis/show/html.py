"""Pieces of HTML that reports are made of. Every text is escaped here, and nowhere else."""

import re
from collections.abc import Sequence
from html import escape

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""A browser that is asked to fetch anything refuses."""
PAGE_INCHES = 7.0
"""Figures as wide as this take the whole width."""


def encodable(text: str) -> str:
    """Text that can be written as UTF-8: names and tokens may hold half a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


def escaped(value: object) -> str:
    """Anything as text that HTML cannot misunderstand."""
    return escape(encodable(str(value)), quote=True)


def element(tag: str, content: str, **attributes: object) -> str:
    """An element around HTML; attributes are escaped (class_ as class, aria_label as aria-label)."""
    listed = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"' for name, value in attributes.items()
    )
    return f"<{tag}{listed}>{content}</{tag}>"


def paragraph(words: object, **attributes: object) -> str:
    return element("p", escaped(words), **attributes)


def heading(level: int, words: object) -> str:
    return element(f"h{level}", escaped(words))


def picture(title: str, data: str, inches: float) -> str:
    """A figure whose image is inside the page: as wide as the page allows, and legible on a phone."""
    width = f"width: max({round(90 * inches)}px, {min(1.0, inches / PAGE_INCHES):.0%})"
    image = f'<img alt="{escaped(title)}" src="{escaped(data)}" style="{width}">'
    paper = element("div", image, class_="paper", tabindex=0, role="group", aria_label=title)
    return element("figure", element("figcaption", heading(3, title)) + paper)


def document(title: str, css: str, top: str, parts: Sequence[str]) -> str:
    """A page that fetches nothing: its top, a list of its headings of levels 2 and 3, and its parts."""
    listed: list[str] = []

    def addressed(match: re.Match[str]) -> str:
        level, words = match.groups()
        address = f"part-{len(listed)}"
        listed.append(element("li", element("a", words, href=f"#{address}"), class_=f"level-{level}"))
        return f'<h{level} id="{address}">{words}</h{level}>'

    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escaped(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
    )
    content = re.sub(r"<h([23])>(.*?)</h\1>", addressed, "\n".join(parts), flags=re.DOTALL)
    contents = element("nav", element("ul", "".join(listed)), aria_label="Contents")
    body = element("header", heading(1, title) + top) + contents + "\n" + element("main", content)
    whole = element("head", head + element("title", escaped(title)) + element("style", css))
    return "<!doctype html>\n" + element("html", f"{whole}\n{element('body', body)}", lang="en") + "\n"
