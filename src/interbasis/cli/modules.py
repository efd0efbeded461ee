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
    if common.shown_between(run, "modules", as_json, request):
        return
    from interbasis.analysis.stages import modules as stage
    from interbasis.run.run import open_run
    from interbasis.show.result_tables import module_tables

    result = stage.run(open_run(run), request or ModulesRequest())
    common.show(result, as_json, module_tables, run)
