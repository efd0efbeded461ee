"""`interbasis trace`: the graph of one computation."""

from typing import Annotated

from interbasis.analysis.stages.trace import TraceRequest
from interbasis.cli import common


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
    traces/NAME.json in the run.

    Example: interbasis trace runs/lib --prompt "Once upon a time"
    """
    if common.shown_between(run, "trace", as_json, request, model, trust):
        return
    from interbasis.analysis.stages import trace as stage
    from interbasis.show.result_tables import trace_tables

    result = stage.run(common.open_run(run, model, trust), request or TraceRequest())
    common.show(result, as_json, trace_tables, run, f"\nStored as {result.stem()}.json in {run}.")
