"""One model of a table, and the three forms it is shown in: terminal, HTML and Markdown.

On a terminal of any width no number is cut, and none is left out. A table that fits is printed as it is;
headings and columns of text are wrapped between words where that makes it fit. One that is still too wide is
printed in parts below each other, each with the first column again; if not even two columns fit, every row is
a block of `name: value` lines.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from interbasis.base.messages import clear_line, printable
from interbasis.base.records import Record

Cell = str | int | float | None
"""Text is shown as it is, a number with thousands separated or three digits, None as a dash."""
MISSING = "–"
MAX_UNBROKEN_CHARACTERS = 28
"""Length of a word in a column of text up to which it is not broken; longer ones, such as paths, may be."""
MAX_NOTE_CHARACTERS = 100
"""Length of a line of a note on a terminal."""
NUMBER = re.compile(r"[+−]?\d[\d,.]*( %)?( \([^)]*\))?$")
"""A number, perhaps with another in brackets: in Markdown, columns of these are set flush right."""


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers are flush right and never wrapped, text is wrapped between words."""

    name: str
    text: bool = False

    def min_width(self, cells: Sequence[str]) -> int:
        """Width below which the column cannot be shown."""
        heading_width = _longest_word(self.name)
        if not self.text:
            return max([heading_width, *map(cell_len, cells)])
        widest = max([heading_width, *map(_longest_word, cells)])
        return min(widest, max(MAX_UNBROKEN_CHARACTERS, heading_width))

    def max_width(self, cells: Sequence[str]) -> int:
        """Width from which on nothing of the column is wrapped."""
        return max(map(cell_len, [self.name, *cells]))


@dataclass(frozen=True)
class ResultTable:
    """A title, columns of text or numbers, rows of cells as text, and a note below.

    The first column names the rows. rich prints a table in the width that there is.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @classmethod
    def from_cells(
        cls,
        title: str,
        head: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        note: str = "",
        text: Collection[str] = (),
    ) -> "ResultTable":
        """Make a table of cells; the first column and those that ``text`` names hold text."""
        columns = tuple(Column(name, text=k == 0 or name in text) for k, name in enumerate(head))
        cells = tuple(tuple(map(cell_text, row)) for row in rows)
        assert all(len(row) == len(head) for row in cells)
        return cls(title, columns, cells, note)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(column.name for column in self.columns)

    def first_and_last(self, count: int) -> "ResultTable":
        """The table with the first and the last of more than ``count`` rows, and "…" between them."""
        if len(self.rows) <= count:
            return self
        gap = ("…", *[""] * (len(self.columns) - 1))
        return replace(self, rows=(*self.rows[: count // 2], gap, *self.rows[-(count // 2) :]))

    def to_html(self) -> str:
        """HTML with a heading of the third level; cells of a table with columns of text may be broken."""
        from interbasis.show.html import render  # here, since terminals do without it

        return render('{% from "parts.html" import table %}{{ table(shown) }}', shown=self)

    def to_markdown(self) -> str:
        """Markdown without title and note; minus signs and per cents are typeset."""
        rules = "|".join("---" if column.text else "---:" for column in self.columns)
        rows = [[_typeset(cell).replace("|", "\\|") for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in (self.names, *rows)]
        return "\n".join([lines[0], f"|{rules}|", *lines[1:]])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, or its parts, in the width that there is."""
        shown = ResultTable(  # escaped before widths are measured
            printable(self.title),
            tuple(replace(column, name=printable(column.name)) for column in self.columns),
            tuple(tuple(map(printable, row)) for row in self.rows),
            printable(self.note),
        )
        if shown.title:
            yield Text(shown.title, style="italic")
        parts = shown._parts(options.max_width)
        yield from map(shown._rich_table, parts) if parts else shown._blocks()
        if shown.note:
            narrow = options.update(width=min(options.max_width, MAX_NOTE_CHARACTERS))
            yield from console.render(Text(shown.note, style="dim italic"), narrow)

    def _parts(self, width: int) -> list[dict[int, int]]:
        """Columns with their widths, part by part; none where two columns do not fit side by side."""
        cells = [[row[k] for row in self.rows] for k in range(len(self.columns))]
        narrow = [column.min_width(cells[k]) for k, column in enumerate(self.columns)]
        wide = [column.max_width(cells[k]) for k, column in enumerate(self.columns)]
        parts: list[dict[int, int]] = []
        for k in range(1, len(self.columns)):
            if parts and _total_width([*parts[-1].values(), narrow[k]]) <= width:
                parts[-1][k] = narrow[k]
            elif _total_width([narrow[0], narrow[k]]) <= width:
                parts.append({0: narrow[0], k: narrow[k]})
            else:
                return []
        for part in parts:  # the space that is left goes to the narrowest of the columns that can use it
            for _ in range(width - _total_width(part.values())):
                if growing := [k for k in part if part[k] < wide[k]]:
                    part[min(growing, key=part.__getitem__)] += 1
        return parts

    def _rich_table(self, widths: dict[int, int]) -> RichTable:
        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for k, width in widths.items():
            column = self.columns[k]
            justify: JustifyMethod = "left" if column.text else "right"
            table.add_column(Text(column.name), justify=justify, width=width, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(row[k]) for k in widths))
        return table

    def _blocks(self) -> Iterator[RenderableType]:
        for row in self.rows:
            yield Text("")
            for column, cell in zip(self.columns, row, strict=True):
                if cell:
                    yield Text(f"{column.name}: {cell}".removeprefix(": "), overflow="fold")
        yield Text("")


Parts = list[str | ResultTable]
"""Lines and tables, in the order in which they are shown."""


@singledispatch
def result_tables(result: Record) -> Parts:
    """Tables of any result; of a record without tables of its own, a row for every field."""
    rows = [(name, repr(value)) for name, value in result.__repr_args__()]
    return [ResultTable.from_cells(type(result).__name__, ("field", "value"), rows, text=("value",))]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Markdown of a table whose columns are numbers where all their cells are."""
    table = ResultTable.from_cells("", head, rows)
    texts = [not _is_numeric([_typeset(row[k]) for row in table.rows]) for k in range(len(head))]
    return replace(table, columns=tuple(map(Column, head, texts))).to_markdown()


def percent(value: float, digits: int = 2) -> str:
    """A share as text, with a space before the sign."""
    return f"{100 * value:.{digits}f} %"


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print on standard output: tables to fit, everything else word for word, without markup."""
    clear_line()
    console = Console(markup=False, highlight=False)
    for part in parts:
        plain = part.plain if isinstance(part, Text) else part
        console.print(printable(plain) if isinstance(plain, str) else part)


def cell_text(value: Cell) -> str:
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def _typeset(text: str) -> str:
    """A space before per cent, a true minus before a number; names of files stay as they are."""
    if text.startswith("`"):
        return text
    return re.sub(r"(?<![\w`-])-(?=\d)", "−", re.sub(r"(?<=\d)%", " %", text))


def _is_numeric(cells: Sequence[str]) -> bool:
    return any(cell != MISSING for cell in cells) and all(
        cell == MISSING or NUMBER.match(cell) for cell in cells
    )


def _total_width(widths: Iterable[int]) -> int:
    """Width of columns with two spaces after each and one before the first."""
    return sum(width + 2 for width in widths) + 1


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
