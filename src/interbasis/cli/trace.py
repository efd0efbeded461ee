"""`interbasis trace`: the graph of one computation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from interbasis.analysis.stages.trace import TraceRequest, TraceResult
from interbasis.cli import common

if TYPE_CHECKING:
    from rich.console import RenderableType


def trace(
    run: common.Run,
    /,
    *,
    request: Annotated[TraceRequest | None, common.Flat] = None,
    model: common.ModelName = None,
    trust: common.Trust = False,
    as_json: common.AsJson = False,
) -> None:
    """Trace one computation: which features, at which positions, made an output what it is.

    Signed edges between positions, scores, and predictions beside what interventions measured. Stored as
    analysis/traces/NAME.json in the run.

    Example: interbasis trace runs/lib --prompt "Once upon a time"
    """
    from interbasis.analysis.stages import trace as stage

    result = stage.run(common.open_run(run, model, trust), request or TraceRequest())
    common.show(result, as_json, lambda result: _tables(result, run), run)


def _tables(result: TraceResult, run: Path) -> "list[RenderableType]":
    from interbasis.show.result_tables import trace_tables

    return [*trace_tables(result), f"\nStored as {result.stem()}.json in {run}."]
