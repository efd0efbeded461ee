"""`interbasis modules`: groups of features."""

from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common


def modules(
    run: common.Run,
    /,
    *,
    resolution: Annotated[float, Parameter(help="γ: larger gives more and smaller modules.")] = 1.0,
    seed: Annotated[int, Parameter(help="Seed of the partition.")] = 0,
    null_graphs: Annotated[int, Parameter(help="Rewired graphs for the null model; 0 leaves it out.")] = 50,
    cross_check: Annotated[bool, Parameter(help="Ask leidenalg too.", negative="")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Group the features of all layers into modules.

    An edge weighs log(Ê/ε), ε being the smallest edge needed as found by 'interbasis ablate'; without that,
    the edges that carry 99 % of Ê² count. Stored as modules.json in the run.
    Example: interbasis modules runs/lib
    """
    from interbasis.communities.modules import find_modules
    from interbasis.communities.vertex_cuts import vertex_cuts
    from interbasis.graph.store import load
    from interbasis.run.results import load_result, rows_by_name, save_result
    from interbasis.terminal.modules import plain_modules, tables

    graph = load(run)
    names = [layer.name for layer in graph.layers[:-1]]
    rows = rows_by_name(load_result(run, "ablation"), "sections", names)
    known = [row["epsilon"] for row in rows if row is not None]
    epsilons = known if known and len(known) == len(rows) else None
    found = find_modules(graph, epsilons, resolution, seed, null_graphs=null_graphs, cross_check=cross_check)
    result = plain_modules(found, vertex_cuts(graph, found)) | {"epsilon_from_ablation": epsilons is not None}
    save_result(run, "modules", result)
    common.show(result | {"run": str(run)}, as_json, tables)
