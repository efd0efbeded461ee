"""`interbasis scoreboard`: which basis finds what is there, on networks with known structure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators
from rich.console import RenderableType

from interbasis.cli import common
from interbasis_studies.known.records import Scoreboard, ScoreboardRequest


def scoreboard(
    *,
    request: Annotated[ScoreboardRequest | None, common.Flat] = None,
    out: Annotated[Path, Parameter(help="Folder for the table and the page.")] = Path("runs/scoreboard"),
    processes: Annotated[
        int,
        Parameter(
            help="Networks scored at a time, with one thread each.", validator=validators.Number(gte=1)
        ),
    ] = 1,
    as_json: common.AsJson = False,
) -> None:
    """Score every basis on networks whose features, interactions and modules are known.

    Writes scoreboard.json, scoreboard.md and scoreboard.html with tables, pictures and conclusions. An
    interrupted command resumes when it is run again.

    Example: interbasis scoreboard --quick --out runs/scoreboard
    """
    from interbasis_studies.known.page import write_pages
    from interbasis_studies.known.scoreboard import run

    board = run(request or ScoreboardRequest(), out, processes=processes)
    page = write_pages(board, out)
    common.show(board, as_json, lambda board: _tables(board, page))


def _tables(board: Scoreboard, page: Path) -> Iterator[RenderableType]:
    from interbasis.show.tables import ResultTable
    from interbasis_studies.known.conclusions import row_conclusion

    for axis, values in board.axes.items():
        rows = [(value, row_conclusion(board, axis, value)) for value in values]
        yield ResultTable.from_cells("", (axis, "conclusion"), rows, text=("conclusion",))
    yield f"Page  {page}"
