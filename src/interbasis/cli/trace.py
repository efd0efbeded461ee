"""`interbasis trace`: the graph of one computation."""

from typing import Annotated

from interbasis.analysis.stages.trace import TraceRequest, TraceResult
from interbasis.cli import common


def trace(
    run: common.Run,
    /,
    *,
    request: Annotated[TraceRequest | None, common.Flat] = None,
    options: Annotated[common.RunOptions | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Trace one computation: which features, at which positions, made an output what it is.

    Signed edges between positions, scores, and predictions beside what interventions measured. Stored as
    traces/NAME.json in the run.

    Example: interbasis trace runs/lib --prompt "Once upon a time"
    """

    def stored(result: TraceResult) -> str:
        return f"\nStored as {result.stem()}.json in {run}."

    common.show_stage(run, "trace", request or TraceRequest(), as_json, options, stored)
