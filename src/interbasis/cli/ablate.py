"""`interbasis ablate`: how few edges and nodes carry the computation."""

from typing import Annotated

from interbasis.analysis.stages.ablate import AblateRequest
from interbasis.cli import common


def ablate(
    run: common.Run,
    /,
    *,
    request: Annotated[AblateRequest | None, common.Flat] = None,
    device: common.Device = None,
    memory: common.Memory = None,
    model: common.ModelName = None,
    trust: common.Trust = False,
    as_json: common.AsJson = False,
) -> None:
    """Find the fewest edges of every section that keep the model's accuracy.

    The result is stored as ablation.json in the run, the accepted masks beside it. An interrupted command
    resumes when it is run again. --nodes alone leaves out the edges.

    Example: interbasis ablate runs/lib --edges --nodes
    """
    if common.shown_between(run, "ablate", as_json, request, model, trust, device=device, memory=memory):
        return
    from interbasis.analysis.stages import ablate as stage
    from interbasis.show.result_tables import ablation_tables

    request = request or AblateRequest()
    if request.nodes and "edges" not in request.model_fields_set:
        request = request.model_copy(update={"edges": False})
    result = stage.run(common.open_run(run, model, trust, memory).on(device), request)
    common.show(result, as_json, ablation_tables, run)
