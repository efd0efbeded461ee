"""Tables declared in TOML: of each the title, the note, and every column with the text of its cells."""

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from interbasis.show.sentences import read_texts
from interbasis.show.tables import MISSING, ResultTable, cell_text

PLACE = re.compile(r"\.(\w+)|\[(\d+)\]")
"""An attribute, or an index."""
MAX_PARTS = 10
"""Parts of a row, which one digit names."""


class CellFormatter(Formatter):
    """Formats cells: what is unknown, or undefined, is a dash."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        value = args[int(field_name[0])]
        for attribute, index in PLACE.findall(field_name):
            if value is not None:
                value = getattr(value, attribute) if attribute else value[int(index)]
        return value, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None or value != value:
            return MISSING
        return format(value, format_spec) if format_spec else cell_text(value)


class DeclaredTables:
    """Tables of a file.

    A cell names attributes of its row, `{0.name}`, or of the parts of a row that is a tuple, `{1.count}`;
    titles, headings and notes name values that are passed. Columns under ``optional`` are left out where
    they hold nothing; what stands there is added to the note where they are shown.
    """

    def __init__(self, file: str):
        self.declarations: dict[str, Any] = read_texts(file)

    def __call__(self, name: str, rows: Iterable[object], /, **values: object) -> ResultTable:
        declared, format_cell = self.declarations[name], CellFormatter().format
        columns, optional = declared["columns"], declared.get("optional", {})
        unknown = [format_cell(text, *[None] * MAX_PARTS) for text in columns.values()]  # such as "– / –"
        cells = [
            [format_cell(text, *(row if isinstance(row, tuple) else (row,))) for text in columns.values()]
            for row in rows
        ]
        cells = [[MISSING if cell == unknown[k] else cell for k, cell in enumerate(row)] for row in cells]
        shown = [
            k
            for k, head in enumerate(columns)
            if head not in optional or any(row[k] != MISSING for row in cells)
        ]
        heads = [list(columns)[k] for k in shown]
        note = "".join([declared.get("note", ""), *(optional.get(head, "") for head in heads)])
        return ResultTable.from_cells(
            declared.get("title", "").format(**values), [head.format(**values) for head in heads],
            [[row[k] for k in shown] for row in cells], note.format(**values),
            [head.format(**values) for head in declared.get("text", ())],
        )  # fmt: skip
