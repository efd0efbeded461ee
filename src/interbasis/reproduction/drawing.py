"""The one place where a reproduction's figures are made."""

from pathlib import Path
from typing import Any


def draw_figures(found: dict[str, Any], plan_folder: Path) -> list[tuple[str, Path]]:
    """Figures of a reproduction as (caption, file in the folder), in the order of the page; none so far.

    ``found`` is what `reproduction.json` of the whole holds; a piece's run is ``plan_folder / piece["run"]``.
    The page shows every figure that is returned here.
    """
    return []
