"""`interbasis modules`: groups of features."""

from typing import Annotated

from interbasis.analysis.stages.modules import ModulesRequest
from interbasis.cli import common


def modules(
    run: common.Run,
    /,
    *,
    request: Annotated[ModulesRequest | None, common.Flat] = None,
    as_json: common.AsJson = False,
) -> None:
    """Group the features of all layers into modules.

    An edge weighs log(Ê/ε), ε being the smallest edge required as found by 'interbasis ablate'; without that,
    the edges that carry 99 % of Ê² count. Stored as modules.json in the run.

    Example: interbasis modules runs/lib
    """
    common.show_stage(run, "modules", request or ModulesRequest(), as_json)
