"""How tables look on a terminal of any width: no number is cut, and none is left out.

A table that fits is printed as it is; headings and columns of text are wrapped between words where that makes
it fit. One that is still too wide is printed in parts below each other, each with the first column again; if
not even two columns fit, every row is a block of `name: value` lines.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from interbasis.base.messages import clear_line, printable

LONGEST_UNBROKEN = 28
"""Characters of a word in a column of text; longer ones, such as paths, may be broken."""

CAPTION_WIDTH = 100
"""Most characters of a line of prose."""


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers are never wrapped, text is wrapped between words."""

    name: str
    text: bool = False

    def least(self, cells: Sequence[str]) -> int:
        """The width it must have."""
        heading = _longest_word(self.name)
        if not self.text:
            return max([heading, *map(cell_len, cells)])
        return min(max([heading, *map(_longest_word, cells)]), max(LONGEST_UNBROKEN, heading))

    def most(self, cells: Sequence[str]) -> int:
        """The width that it can use."""
        return max(map(cell_len, [self.name, *cells]))


@dataclass
class ResultTable:
    """Rows of text, the first column being what they are of; rich renders it to fit."""

    title: str
    columns: tuple[Column, ...]
    caption: str = ""
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        """One cell per column, as plain text."""
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def ends(self, most: int) -> "ResultTable":
        """Of more rows than ``most``, the first and the last ones, with "…" between them."""
        if len(self.rows) <= most:
            return self
        gap = ("…", *[""] * (len(self.columns) - 1))
        rows = [*self.rows[: most // 2], gap, *self.rows[-(most // 2) :]]
        return replace(self, rows=rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, or its parts, in the width that there is."""
        shown = self._printable()
        if shown.title:
            yield Text(shown.title, style="italic")
        parts = shown._parts(options.max_width)
        yield from map(shown._table, parts) if parts else shown._blocks()
        if shown.caption:
            narrow = options.update(width=min(options.max_width, CAPTION_WIDTH))
            yield from console.render(Text(shown.caption, style="dim italic"), narrow)

    def _printable(self) -> "ResultTable":
        """The table as a terminal may show it: escaped before its widths are measured."""
        columns = tuple(replace(column, name=printable(column.name)) for column in self.columns)
        rows = [tuple(map(printable, row)) for row in self.rows]
        return ResultTable(printable(self.title), columns, printable(self.caption), rows)

    def _cells(self, number: int) -> list[str]:
        return [row[number] for row in self.rows]

    def _parts(self, width: int) -> list[dict[int, int]]:
        """Columns with their widths, part by part; none where two columns do not fit side by side."""
        least = [column.least(self._cells(k)) for k, column in enumerate(self.columns)]
        most = [column.most(self._cells(k)) for k, column in enumerate(self.columns)]
        parts: list[dict[int, int]] = []
        for k in range(1, len(self.columns)):
            if parts and _total([*parts[-1].values(), least[k]]) <= width:
                parts[-1][k] = least[k]
            elif _total([least[0], least[k]]) <= width:
                parts.append({0: least[0], k: least[k]})
            else:
                return []
        return [_widened(part, most, width) for part in parts]

    def _table(self, widths: dict[int, int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
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


def make_table(title: str, first: str, *others: str | Column) -> ResultTable:
    """One column of names, the others of numbers unless said otherwise."""
    columns = (other if isinstance(other, Column) else Column(other) for other in others)
    return ResultTable(title, (Column(first, text=True), *columns))


def print_parts(parts: Iterable[RenderableType]) -> None:
    """On standard output: tables to fit, everything else word for word, without markup."""
    clear_line()
    console = Console(markup=False, highlight=False)
    for part in parts:
        plain = part.plain if isinstance(part, Text) else part
        console.print(printable(plain) if isinstance(plain, str) else part)


def _total(widths: Iterable[int]) -> int:
    """With two spaces after every column and one before the first."""
    return sum(width + 2 for width in widths) + 1


def _widened(part: dict[int, int], most: Sequence[int], width: int) -> dict[int, int]:
    """The space that is left goes to the narrowest of the columns that can use it."""
    widths = dict(part)
    for _ in range(width - _total(widths.values())):
        growing = [k for k in widths if widths[k] < most[k]]
        if not growing:
            break
        widths[min(growing, key=widths.__getitem__)] += 1
    return widths


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
