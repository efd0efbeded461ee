"""`interbasis scoreboard`: which basis finds what is there, on networks with known structure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import RenderableType

from interbasis.cli import common
from interbasis.known.records import Scoreboard, ScoreboardRequest


def scoreboard(
    *,
    request: Annotated[ScoreboardRequest | None, common.Flat] = None,
    out: Annotated[Path, Parameter(help="Folder for the table and the page.")] = Path("runs/scoreboard"),
    as_json: common.AsJson = False,
) -> None:
    """Score every basis on networks whose features, interactions and modules are known.

    Writes scoreboard.json and scoreboard.html with tables, pictures and conclusions. An interrupted command
    resumes when it is given again.

    Example: interbasis scoreboard --quick --out runs/scoreboard
    """
    from interbasis.known.page import write_page
    from interbasis.known.scoreboard import run

    board = run(request or ScoreboardRequest(), out)
    page = write_page(board, out)
    common.show(board, as_json, lambda board: _tables(board, page))


def _tables(board: Scoreboard, page: Path) -> Iterator[RenderableType]:
    from rich import box
    from rich.table import Table

    from interbasis.known.conclusions import row_conclusion

    for axis in board.axes:
        table = Table(axis, "conclusion", box=box.SIMPLE_HEAD)
        for value in board.axes[axis]:
            table.add_row(value, row_conclusion(board, axis, value))
        yield table
    yield f"Page  {page}"
