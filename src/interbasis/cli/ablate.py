"""`interbasis ablate`: how few edges and nodes carry the computation."""

from typing import Annotated

from interbasis.cli import common
from interbasis.run.stages.ablate import AblateRequest


def ablate(
    run: common.Run,
    /,
    *,
    request: Annotated[AblateRequest | None, common.Flat] = None,
    model: common.ModelName = None,
    device: common.Device = None,
    memory: common.Memory = None,
    as_json: common.AsJson = False,
) -> None:
    """Find the fewest edges of every section that keep the model's accuracy.

    The result is stored as ablation.json in the run, the accepted masks beside it. An interrupted command
    resumes when it is run again. --nodes alone leaves out the edges.

    Example: interbasis ablate runs/lib --edges --nodes
    """
    from interbasis.run.opened import open_run, open_run_within
    from interbasis.run.stages import ablate as stage
    from interbasis.terminal import ablation_tables

    request = request or AblateRequest()
    if request.nodes and "edges" not in request.model_fields_set:
        request = request.model_copy(update={"edges": False})
    opened = open_run(run, model=model) if memory is None else open_run_within(memory, run, model)
    result = stage.run(opened.on(device), request)
    common.show(result, as_json, ablation_tables, run)
