"""What commands print at several widths: no number cut, none left out."""

import contextlib
import io
import os
import re
from collections.abc import Iterable
from unittest.mock import patch

from rich.console import RenderableType

from command_line import Ended, run_command
from interbasis.show import tables
from interbasis.show.tables import print_parts as really_print

WIDTHS = ("60", "80", "200", None)
"""COLUMNS; None is a pipe, where nothing says how wide it is."""
CUT_NUMBER = re.compile(r"[\d,.]…|…[\d,.]")
NUMBER = re.compile(r"\d[\d,.]*(?:e[+-]\d+)?%?")


def printed(parts: Iterable[RenderableType], width: str | None) -> str:
    out = io.StringIO()
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    if width is not None:
        environment["COLUMNS"] = width
    with patch.dict(os.environ, environment, clear=True), contextlib.redirect_stdout(out):
        really_print(parts)
    return out.getvalue()


def check_parts(parts: Iterable[RenderableType]) -> str:
    """What is printed holds every number whole at every width, the same ones; what 200 columns show."""
    parts = list(parts)
    shown = {width: printed(parts, width) for width in WIDTHS}
    for width, text in shown.items():
        assert not CUT_NUMBER.search(text), (width, text)
        if width is not None:
            assert max(map(len, text.splitlines())) <= int(width)
        for table in parts:
            if isinstance(table, tables.ResultTable):
                for row in table.rows:
                    for column, cell in zip(table.columns, row, strict=True):
                        assert column.text or re.search(rf"(?<!\S){re.escape(cell)}(?!\S)", text), cell
    numbers = {width: {found.rstrip(",.") for found in NUMBER.findall(text)} for width, text in shown.items()}
    for width in WIDTHS:
        assert numbers[width] == numbers["200"], width
    return shown["200"]


def check_command(*arguments: object) -> Ended:
    """Run a command once and print its result at every width."""
    checked = []

    def print_parts(parts: Iterable[RenderableType]) -> None:
        checked.append(check_parts(parts))

    with patch("interbasis.show.tables.print_parts", print_parts), patch.dict(os.environ):
        ended = run_command(*arguments)
    assert ended.code == 0, ended.err
    assert len(checked) == 1
    assert NUMBER.search(checked[0])
    return ended
