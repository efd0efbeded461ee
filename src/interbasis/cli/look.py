"""`interbasis look`: a first look at a language model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from interbasis.cli import common

if TYPE_CHECKING:
    from interbasis.run.look import FirstLook

LAYERS_SHOWN = 6
"""Node layers whose labels are printed, the last ones."""


def look(
    model: Annotated[str, Parameter(help="hf:FOLDER-OR-HUB-ID.")],
    /,
    *,
    data: Annotated[
        str | None, Parameter(help="Text by name, as for build; default: a text that comes with interbasis.")
    ] = None,
    seconds: Annotated[float, Parameter(name="--seconds", help="Time to take, about.")] = 80.0,
    out: Annotated[Path, Parameter(help="Folder of the run; the page is beside it.")] = Path("runs/look"),
    as_json: common.AsJson = False,
) -> None:
    """Take a first look at a language model: a page within about a minute.

    It builds the graph of as many of the last blocks as the time allows, labels their leading features,
    traces the first line of the text, and says what it would take to know more. The text by default was
    written for interbasis and has its licence (MIT).

    Example: interbasis look hf:FOLDER
    """
    from interbasis.run.look import look as first_look

    common.show(first_look(model, out, data=data, seconds=seconds), as_json, _lines)


def _lines(result: "FirstLook") -> list[str]:
    layers = list(result.labels.items())[-LAYERS_SHOWN:]
    blocks = ", ".join(result.blocks)
    return [
        f"\nBlocks {blocks} of {result.all_blocks}, {result.model}; largest error {result.error:.0%}.",
        *(f"  {name}: {'; '.join(labels)}" for name, labels in layers),
        f"Traced: {result.prompt}",
        f"\nPage    {result.page}   (open it in a browser; it works from disk)",
        f"Run     {result.run}   (interbasis view {result.run})",
        f"To know more: all blocks at 5 % over the same text take about {result.seconds_for_more:,.0f} s, "
        f"this took {result.seconds:.0f} s: interbasis build {result.model} --data DATA --error 5% --out RUN",
    ]
