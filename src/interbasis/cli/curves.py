"""`interbasis curves`: how the metric falls as edges are ablated."""

from typing import Annotated

from interbasis.analysis.stages.curves import CurvesRequest
from interbasis.cli import common


def curves(
    run: common.Run,
    /,
    *,
    request: Annotated[CurvesRequest | None, common.Flat] = None,
    options: Annotated[common.DeviceOptions | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Measure the metric with 0.1 to 100 % of the edges kept, per section and in all at once.

    The result is stored as curves.json in the run, with 95 % bootstrap intervals over the samples.

    Example: interbasis curves runs/lib
    """
    common.show_stage(run, "curves", request or CurvesRequest(), as_json, options)
