"""`interbasis modules`: groups of features."""

from typing import Annotated

from interbasis.cli import common
from interbasis.run.stages.modules import ModulesRequest


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
    from interbasis.graph.store import load
    from interbasis.run.opened import RunGraph
    from interbasis.run.stages import modules as stage
    from interbasis.terminal import module_tables

    result = stage.run(RunGraph(graph=load(run), folder=run), request or ModulesRequest())
    common.show(result, as_json, module_tables, run)
