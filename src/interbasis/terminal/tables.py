"""How tables look on a terminal."""

from rich import box
from rich.table import Table


def make_table(title: str, first: str, *others: str) -> Table:
    """One column of names, the others of numbers."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    table.caption_justify = "left"
    table.add_column(first, no_wrap=True)
    for other in others:
        table.add_column(other, justify="right", no_wrap=True)
    return table
