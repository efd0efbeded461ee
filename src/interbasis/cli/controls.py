"""`interbasis controls`: what else would look as sparse?"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from interbasis.cli import common
from interbasis.runtime.literals import Basis, Metric

if TYPE_CHECKING:
    from interbasis.ablation.controls import Control
    from interbasis.runtime.checkpoints import State


def controls(
    run: common.Run,
    /,
    *,
    data: common.Data = None,
    metric: Annotated[Metric | None, Parameter(help="The family's without it.")] = None,
    tolerance: Annotated[float | None, Parameter(help="For edges required; 0.001 or 0.1.")] = None,
    seed: Annotated[int, Parameter(help="Seed of everything random.")] = 0,
    bases: Annotated[
        str,
        Parameter(help="With commas; the first is that of random rankings and scrambled weights."),
    ] = "lib,gib,pca,neuron,random",
    stressed: Annotated[
        str,
        Parameter(help='Bases that also get edges required and parts of ablations; "" for none.'),
    ] = "lib,pca",
    scrambles: Annotated[
        int,
        Parameter(help="Networks with shuffled and with re-drawn weights, of each; seeds from --seed on."),
    ] = 1,
    as_json: common.AsJson = False,
) -> None:
    """Compare the run's model with other bases, scrambled weights, random rankings, and parts of ablations.

    The table is stored as controls.json in the run. Takes some minutes; killed, the same command goes on with
    the row it was at. Example: interbasis controls runs/lib
    """
    from interbasis.ablation.controls import Plan
    from interbasis.ablation.metrics import default_metric
    from interbasis.ablation.search import ToleranceError
    from interbasis.data.batches import Batches
    from interbasis.graph.store import graph_digest
    from interbasis.run.opened import open_run
    from interbasis.run.results import save_result
    from interbasis.runtime.checkpoints import Checkpoints, environment
    from interbasis.runtime.progress import progress_bar
    from interbasis.terminal.evidence import control_tables, plain_controls

    opened = open_run(run)
    samples, chosen = opened.data(data), metric or default_metric(opened.network)
    plan = Plan(
        opened.network, opened.data(None, "train"), samples, chosen, _bases(bases), _bases(stressed),
        tolerance=tolerance, seed=seed, scrambles=scrambles,
        settings=opened.graph.config.model_dump(exclude={"basis", "seed"}),
    )  # fmt: skip
    settings = {
        "data": samples.spec, "metric": chosen, "tolerance": tolerance, "seed": seed, "bases": bases,
        "stressed": stressed, "scrambles": scrambles,
    }  # fmt: skip
    belongs = {"fingerprint": Batches(samples).fingerprint(), "graph": graph_digest(run)} | environment()
    kept = Checkpoints(run, "controls", settings | belongs)
    names = [layer.name for layer in opened.graph.layers]
    rows = []
    with progress_bar() as advance:
        for number, (_, make) in enumerate(plan.rows(advance)):

            def plain(make: Callable[[], "Control"] = make) -> "State":
                return {}, plain_controls([make()], names)[0]

            try:
                rows.append(kept.remember(f"row.{number}", plain)[1])
            except ToleranceError:
                kept.finish()  # nothing will come of it
                raise
    result = {"data": {"spec": samples.spec, "samples": len(samples)}, "rows": rows}
    save_result(run, "controls", result)
    kept.finish("controls")
    common.show(result | {"run": str(run)}, as_json, control_tables)


def _bases(names: str) -> list[Basis]:
    return cast(list[Basis], [name for name in names.split(",") if name])
