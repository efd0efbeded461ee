"""`interbasis curves`: how the metric falls as edges go."""

from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common
from interbasis.runtime.literals import Metric


def curves(
    run: common.Run,
    /,
    *,
    data: common.Data = None,
    metric: Annotated[Metric | None, Parameter(help="The family's without it.")] = None,
    seed: Annotated[int, Parameter(help="Seed of the bootstrap.")] = 0,
    as_json: common.AsJson = False,
) -> None:
    """Measure the metric with 0.1 to 100 % of the edges kept, per section and in all at once.

    The result is stored as curves.json in the run, with 95 % bootstrap intervals over the samples. Example:
    interbasis curves runs/lib
    """
    from interbasis.ablation.curves import FRACTIONS, sparsity_curves
    from interbasis.ablation.metrics import default_metric
    from interbasis.ablation.sparsity import interaction_sparsity, plain
    from interbasis.data.batches import Batches
    from interbasis.graph.store import graph_digest
    from interbasis.run.opened import open_run
    from interbasis.run.results import save_result
    from interbasis.runtime.checkpoints import Checkpoints, environment
    from interbasis.terminal.evidence import curve_tables, plain_curves

    opened = open_run(run)
    samples = opened.data(data)
    chosen = metric or default_metric(opened.network)
    settings = {"metric": chosen, "data": samples.spec, "samples": len(samples), "seed": seed}
    fingerprint = Batches(samples).fingerprint()
    belongs = {"fingerprint": fingerprint, "graph": graph_digest(run)} | environment()
    resume = Checkpoints(run, "curves", settings | belongs)
    found = sparsity_curves(
        opened.network, opened.graph, samples, chosen, fractions=FRACTIONS, seed=seed, resume=resume
    )
    names = [layer.name for layer in opened.graph.layers]
    result = plain_curves(found, names) | {
        "data": {"spec": samples.spec, "samples": len(samples), "fingerprint": fingerprint},
        "sparsity": plain(interaction_sparsity(opened.graph)),
    }
    save_result(run, "curves", result)
    resume.finish("curves")
    common.show(result | {"run": str(run)}, as_json, curve_tables)
