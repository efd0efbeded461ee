"""`interbasis controls`: what else would look as sparse?"""

from typing import Annotated

from interbasis.analysis.stages.controls import ControlsRequest
from interbasis.cli import common


def controls(
    run: common.Run,
    /,
    *,
    request: Annotated[ControlsRequest | None, common.Flat] = None,
    options: Annotated[common.DeviceOptions | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Compare the run with other bases, scrambled weights and random rankings.

    The table is stored as controls.json in the run. It takes some minutes; an interrupted command resumes
    with the first unfinished row when it is run again.

    Example: interbasis controls runs/lib
    """
    common.show_stage(run, "controls", request or ControlsRequest(), as_json, options)
