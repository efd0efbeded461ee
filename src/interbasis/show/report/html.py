"""The few pieces of HTML that a report is made of. Every text is escaped here, and nowhere else."""

import re
from collections.abc import Sequence
from html import escape

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""A browser that is asked to fetch anything refuses."""
PAGE_INCHES = 7.0
"""Figures as wide as this take the whole width."""


def text(value: object) -> str:
    """Anything as text that HTML cannot misunderstand."""
    encodable = str(value).encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is not
    return escape(encodable, quote=True)


def element(tag: str, content: str, **attributes: object) -> str:
    """An element around HTML; attributes are escaped (class_ as class, aria_label as aria-label)."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"' for name, value in attributes.items()
    )
    return f"<{tag}{given}>{content}</{tag}>"


def paragraph(words: object, **attributes: object) -> str:
    return element("p", text(words), **attributes)


def heading(level: int, words: object) -> str:
    return element(f"h{level}", text(words))


def table(
    head: Sequence[object], rows: Sequence[Sequence[object]], caption: str = "", kind: str = "numbers"
) -> str:
    """A table whose first column names the rows; its cells are "numbers", or "words" that may be broken."""
    names = element("tr", "".join(element("th", text(name), scope="col") for name in head))
    body = "".join(
        element(
            "tr",
            element("th", text(row[0]), scope="row") + "".join(element("td", text(cell)) for cell in row[1:]),
        )
        for row in rows
    )
    inside = element("thead", names) + element("tbody", body)
    said = paragraph(caption, class_="caption") if caption else ""
    label = ", ".join(str(name) for name in head if name)
    attributes = {"class_": "wide", "tabindex": 0, "role": "group", "aria_label": label}
    return element("div", element("table", inside, class_=kind), **attributes) + said


def picture(title: str, data: str, inches: float) -> str:
    """A figure whose image is inside the page: as wide as the page allows, and legible on a phone."""
    width = f"width: max({round(90 * inches)}px, {min(1.0, inches / PAGE_INCHES):.0%})"
    image = f'<img alt="{text(title)}" src="{text(data)}" style="{width}">'
    paper = element("div", image, class_="paper", tabindex=0, role="group", aria_label=title)
    return element("figure", element("figcaption", heading(3, title)) + paper)


def head(title: str, css: str) -> str:
    """The head of a page that asks nobody for anything."""
    return element(
        "head",
        '<meta charset="utf-8">'
        + f'<meta http-equiv="Content-Security-Policy" content="{text(POLICY)}">'
        + '<meta name="viewport" content="width=device-width, initial-scale=1">'
        + '<meta name="color-scheme" content="light dark">'
        + element("title", text(title))
        + element("style", css),
    )


def document(title: str, css: str, top: str, parts: Sequence[str]) -> str:
    """A whole page: its top, a list of its headings of the second and third level, and its parts."""
    listed: list[str] = []

    def addressed(match: re.Match[str]) -> str:
        level, words = match.groups()
        address = f"part-{len(listed)}"
        listed.append(element("li", element("a", words, href=f"#{address}"), class_=f"level-{level}"))
        return f'<h{level} id="{address}">{words}</h{level}>'

    content = re.sub(r"<h([23])>(.*?)</h\1>", addressed, "\n".join(parts), flags=re.DOTALL)
    contents = element("nav", element("ul", "".join(listed)), aria_label="Contents")
    body = element("header", heading(1, title) + top) + contents + "\n" + element("main", content)
    inside = head(title, css) + "\n" + element("body", body)
    return "<!doctype html>\n" + element("html", inside, lang="en") + "\n"
