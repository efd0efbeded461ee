"""`interbasis plan`: what a build costs."""

from typing import Annotated

from cyclopts import Parameter

from interbasis.analysis.costs.records import PlanRequest
from interbasis.cli import common


def plan(
    model: Annotated[
        str, Parameter(help="gpt2-small, smollm2-135m, llama-1b, llama-7b, or a model by name as for build.")
    ],
    /,
    *,
    request: Annotated[PlanRequest | None, common.Flat] = None,
    measure_again: Annotated[
        bool, common.flag("Measure this machine again, which takes a few seconds.")
    ] = False,
    as_json: common.AsJson = False,
) -> None:
    """Estimate what a build costs: operations, memory and time per phase.

    Costs follow from the shape of the model, which is read without its weights, and from a short measurement
    of this machine that is kept in the cache folder. Times are for as many threads as PyTorch uses.

    Example: interbasis plan gpt2-small --tokens 512000 --edge-group positions
    """
    from interbasis.analysis.costs.plan import make_plan
    from interbasis.show.result_tables import plan_tables

    common.show(make_plan(model, request or PlanRequest(), measure_again), as_json, plan_tables)
