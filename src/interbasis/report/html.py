"""The few pieces of HTML that a report is made of. Every text is escaped here, and nowhere else."""

from collections.abc import Sequence
from html import escape


def text(value: object) -> str:
    """Anything as text that HTML cannot misunderstand."""
    return escape(str(value), quote=True)


def element(tag: str, content: str, **attributes: object) -> str:
    """An element around HTML; attributes are escaped (class_ and for_ without their underscore)."""
    given = "".join(f' {name.rstrip("_")}="{text(value)}"' for name, value in attributes.items())
    return f"<{tag}{given}>{content}</{tag}>"


def paragraph(words: object, **attributes: object) -> str:
    return element("p", text(words), **attributes)


def heading(level: int, words: object) -> str:
    return element(f"h{level}", text(words))


def table(
    head: Sequence[object],
    rows: Sequence[Sequence[object]],
    *,
    groups: Sequence[tuple[str, int]] = (),
    caption: str = "",
) -> str:
    """A table whose first column names the rows; ``groups`` are (title, columns) above the other columns."""
    lines = []
    if groups:
        over = "".join(element("th", text(name), colspan=span, scope="colgroup") for name, span in groups)
        lines.append(element("tr", f"<td></td>{over}"))
    lines.append(element("tr", "".join(element("th", text(name), scope="col") for name in head)))
    body = "".join(
        element(
            "tr",
            element("th", text(row[0]), scope="row") + "".join(element("td", text(cell)) for cell in row[1:]),
        )
        for row in rows
    )
    said = element("caption", text(caption)) if caption else ""
    inside = said + element("thead", "".join(lines)) + element("tbody", body)
    return element("div", element("table", inside), class_="wide")


def picture(title: str, data: str) -> str:
    """A figure whose image is inside the page."""
    image = f'<img alt="{text(title)}" src="{text(data)}">'
    return element("figure", element("figcaption", text(title)) + element("div", image, class_="paper"))
