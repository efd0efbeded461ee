"""`interbasis steer`: what the model says when a feature is changed."""

from typing import Annotated

from interbasis.analysis.stages.steer import SteerRequest
from interbasis.cli import common


def steer(
    run: common.Run,
    /,
    *,
    request: Annotated[SteerRequest, common.Flat],
    options: Annotated[common.RunOptions | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Change a feature, on one prompt or over many samples, and compare the outputs before and after.

    Prints the outputs whose probability changes most, and for a language model a continuation with and
    without the change. With --samples changes are averaged, with intervals, and the feature's label is
    tested: what it says about outputs, beside random directions of the same length.

    Example: interbasis steer runs/lib --feature mlp_in.3:17 --by 4 --prompt "Once upon a time"
    """
    common.show_stage(run, "steer", request, as_json, options)
