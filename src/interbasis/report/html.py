"""The few pieces of HTML that a report is made of. Every text is escaped here, and nowhere else."""

from collections.abc import Sequence
from html import escape

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""A browser that is asked to fetch anything refuses."""


def text(value: object) -> str:
    """Anything as text that HTML cannot misunderstand."""
    encodable = str(value).encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is not
    return escape(encodable, quote=True)


def element(tag: str, content: str, **attributes: object) -> str:
    """An element around HTML; attributes are escaped (class_ and for_ without their underscore)."""
    given = "".join(f' {name.rstrip("_")}="{text(value)}"' for name, value in attributes.items())
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
    said = element("caption", text(caption)) if caption else ""
    inside = said + element("thead", names) + element("tbody", body)
    return element("div", element("table", inside, class_=kind), class_="wide")


def picture(title: str, data: str, inches: float) -> str:
    """A figure whose image is inside the page, as wide as fits but no wider than is of use."""
    image = f'<img alt="{text(title)}" src="{text(data)}" width="{round(125 * inches)}">'
    return element("figure", element("figcaption", text(title)) + element("div", image, class_="paper"))


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
