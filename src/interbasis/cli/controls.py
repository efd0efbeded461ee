"""`interbasis controls`: what else would look as sparse?"""

from typing import Annotated

from cyclopts import Parameter

from interbasis.choices import Metric
from interbasis.cli import common


def controls(
    run: common.Run,
    /,
    *,
    data: common.Data = None,
    metric: Annotated[Metric | None, Parameter(help="The family's without it.")] = None,
    tolerance: Annotated[float | None, Parameter(help="For edges required; 0.001 or 0.1.")] = None,
    seed: Annotated[int, Parameter(help="Seed of everything random.")] = 0,
    as_json: common.AsJson = False,
) -> None:
    """Compare the run's model with other bases, scrambled weights, random rankings, and parts of ablations.

    The table is stored as controls.json in the run. Takes some minutes. Example: interbasis controls runs/lib
    """
    from interbasis.evidence import controls as run_controls
    from interbasis.evidence_tables import control_tables, plain_controls
    from interbasis.results import save_result
    from interbasis.runs import default_metric, open_run

    opened = open_run(run)
    samples = opened.data(data)
    kept = opened.graph.config.model_dump(exclude={"basis", "seed"})
    found = run_controls(
        opened.network, opened.data(None, "train"), samples, metric or default_metric(opened),
        tolerance=tolerance, seed=seed, **kept,
    )  # fmt: skip
    names = [layer.name for layer in opened.graph.layers]
    result = {"data": {"spec": samples.spec, "samples": len(samples)}, "rows": plain_controls(found, names)}
    save_result(run, "controls", result)
    common.show(result | {"run": str(run)}, as_json, control_tables)
