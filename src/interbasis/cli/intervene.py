"""`interbasis intervene`: accuracy and loss of the model with a feature set."""

from typing import Annotated

from interbasis.analysis.stages.intervene import InterveneRequest
from interbasis.cli import common


def intervene(
    run: common.Run,
    /,
    *,
    request: Annotated[InterveneRequest, common.Flat],
    options: Annotated[common.RunOptions | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Set a feature over labelled data, and compare accuracy and loss before and after.

    The report's claims use what is measured.

    Example: interbasis intervene runs/lib --feature mlp_in.0:3 --value 0
    """
    common.show_stage(run, "intervene", request, as_json, options)
