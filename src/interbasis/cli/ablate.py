"""`interbasis ablate`: how few edges and nodes carry the computation."""

from typing import Annotated

from interbasis.analysis.stages.ablate import AblateRequest
from interbasis.cli import common


class AblateOptions(common.DeviceOptions):
    """Model and resources of an ablation."""

    memory: common.Memory = None


def ablate(
    run: common.Run,
    /,
    *,
    request: Annotated[AblateRequest | None, common.Flat] = None,
    options: Annotated[AblateOptions | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Find the fewest edges of every section that keep the model's accuracy.

    The result is stored as ablation.json in the run, the accepted masks beside it. An interrupted command
    resumes when it is run again. --nodes alone leaves out the edges.

    Example: interbasis ablate runs/lib --edges --nodes
    """
    if common.shown_between(run, "ablate", request, as_json, options):
        return
    request = request or AblateRequest()
    if request.nodes and "edges" not in request.model_fields_set:
        request = request.model_copy(update={"edges": False})
    common.show_stage(run, "ablate", request, as_json, options)
