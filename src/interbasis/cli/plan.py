"""`interbasis plan`: what a build takes."""

from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common
from interbasis.cli.build import BuildOptions, chosen_settings
from interbasis.graph.costs import PlanRequest


def plan(
    model: Annotated[str, Parameter(help="A model by name, as for build.")],
    /,
    *,
    request: Annotated[PlanRequest | None, common.Flat] = None,
    options: Annotated[BuildOptions | None, common.Flat] = None,
    device: common.Device = None,
    as_json: common.AsJson = False,
) -> None:
    """Try a build on a few samples: time, memory, disk space and error, for several targets.

    It takes as long as the first step of a build without --exact does, and measures the model on these data
    and this machine. --tokens, --gpus and --nodes say what the same would take with more. With --dictionary
    it is the graph between dictionaries that is planned.

    Example: interbasis plan modadd
    """
    from interbasis.lib.build import with_network_defaults
    from interbasis.lib.plan import make_plan
    from interbasis.run.dictionary_run import check_request, plan_by_name
    from interbasis.run.execution import computing_network
    from interbasis.run.named_build import prepare
    from interbasis.run.request import requested
    from interbasis.show.dictionaries.tables import dictionary_plan_tables
    from interbasis.show.result_tables import plan_tables

    asked = requested(chosen_settings(model, options))
    check_request(asked)
    prepared = prepare(asked)
    if asked.dictionary:
        common.show(plan_by_name(prepared, request, device), as_json, dictionary_plan_tables)
        return
    config = with_network_defaults(prepared.network, asked.settings)
    network = computing_network(prepared.network, config, device)
    common.show(make_plan(asked.model, network, prepared.data, config, request), as_json, plan_tables)
