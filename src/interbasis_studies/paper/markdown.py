"""Tables in Markdown."""

import re
from collections.abc import Iterable, Sequence

Cell = str | int | float | None

NUMBER = re.compile(r"[+−]?\d[\d,.]*( %)?( \([^)]*\))?$")
"""A number, perhaps with another in brackets: columns of these are set flush right."""


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table; cells are texts or numbers, None is a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    rules = ["---:" if _numeric([row[k] for row in cells]) else "---" for k in range(len(head))]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(rules) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells])


def _numeric(column: Sequence[str]) -> bool:
    return any(cell != "–" for cell in column) and all(cell == "–" or NUMBER.match(cell) for cell in column)


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else _typeset(str(value)).replace("|", "\\|")


def _typeset(text: str) -> str:
    """A space before per cent, a true minus before a number; names of files stay as they are."""
    if text.startswith("`"):
        return text
    return re.sub(r"(?<![\w`-])-(?=\d)", "−", re.sub(r"(?<=\d)%", " %", text))


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f} %"
