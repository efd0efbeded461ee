"""`interbasis ablate`: how few edges and nodes carry the computation."""

from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common
from interbasis.runtime.literals import Metric


def ablate(
    run: common.Run,
    /,
    *,
    data: common.Data = None,
    edges: Annotated[
        bool, Parameter(help="Edges required; what is done without --nodes.", negative="", show_default=False)
    ] = False,
    nodes: Annotated[bool, Parameter(help="Nodes required.", negative="", show_default=False)] = False,
    metric: Annotated[Metric | None, Parameter(help="The family's without it.")] = None,
    tolerance: Annotated[
        float | None, Parameter(help="Accuracy that may be lost, or cross-entropy gained; 0.001 or 0.1.")
    ] = None,
    sections: Annotated[
        str | None, Parameter(help="Sections by the names of their source layers, with commas.")
    ] = None,
    stable: Annotated[
        bool, Parameter(help="Look also for the count from which every larger one passes.")
    ] = True,
    intervals: Annotated[
        bool,
        Parameter(
            help="Bootstrap intervals of the edges required, over the samples.",
            negative="",
            show_default=False,
        ),
    ] = False,
    as_json: common.AsJson = False,
) -> None:
    """Find the fewest edges of every section, or nodes of every layer, that keep the model's accuracy.

    The result is stored as ablation.json in the run, the accepted masks beside it. Killed, the same command
    goes on where it was. Example: interbasis ablate runs/lib --edges --nodes
    """
    from interbasis.run.ablate import AblationRequest, ablate_run, tables
    from interbasis.run.opened import open_run

    edges = edges or not nodes
    request = AblationRequest(
        edges, nodes, metric, tolerance, sections.split(",") if sections else None, stable, intervals
    )
    result = ablate_run(open_run(run), request, data)
    common.show(result | {"run": str(run)}, as_json, tables)
