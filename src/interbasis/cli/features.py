"""`interbasis features`: what the features of a run mean."""

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from interbasis.cli import common


def features(
    run: common.Run,
    /,
    *,
    top: Annotated[int, Parameter(help="Features of each layer, the constant left out.")] = 32,
    ends: Annotated[int, Parameter(help="Most positive and most negative examples of each feature.")] = 8,
    bands: Annotated[int, Parameter(help="Quantile bands of examples in between.")] = 4,
    per_band: Annotated[int, Parameter(help="Examples in each band.")] = 4,
    seed: Annotated[int, Parameter(help="Seed of the examples in between.")] = 0,
    data: Annotated[
        str | None, Parameter(help="Data to look at; what the run was built on without it.")
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """Find out what the features of a run respond to and what they do.

    Labels, class and position statistics, direct effects and histograms are stored as features.json in the
    run, dataset examples as examples.json. Killed, the same command goes on where it was.
    Example: interbasis features runs/lib
    """
    from interbasis.data.batches import Batches
    from interbasis.features.analysis import Request, analyse
    from interbasis.features.examples import Plan
    from interbasis.features.names import renderings
    from interbasis.graph.store import graph_digest
    from interbasis.run.opened import open_run
    from interbasis.run.results import save_result
    from interbasis.runtime.checkpoints import Checkpoints, environment
    from interbasis.runtime.errors import InterbasisError
    from interbasis.runtime.progress import progress_bar

    if top < 1:
        raise InterbasisError(f"expected at least one feature per layer, received --top {top}")
    opened = open_run(run)
    samples = opened.data(data, "train")
    plan = Plan(ends=ends, bands=bands, per_band=per_band, seed=seed)
    rendering, classes, outputs = renderings(samples, opened.network.family)
    request = Request(top, plan, rendering, outputs, classes)
    fingerprint = Batches(samples).fingerprint()
    settings = {"top": top, "data": samples.spec, "fingerprint": fingerprint} | asdict(plan)
    kept = Checkpoints(run, "features", settings | {"graph": graph_digest(run)} | environment())
    with progress_bar() as advance:
        found, shown = analyse(opened.graph, opened.network, samples, request, advance, kept)
    save_result(run, "features", found)
    save_result(run, "examples", shown)
    kept.finish("features", "examples")
    common.show(found | {"run": str(run)}, as_json, _tables)


def _tables(found: dict[str, Any]) -> list[Any]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = []
    for layer in found["layers"]:
        table = Table(box=box.SIMPLE_HEAD, title=layer["name"], title_justify="left", padding=(0, 1, 0, 0))
        table.add_column("feature", justify="right")
        table.add_column("what it is")
        table.add_column("pushes up", no_wrap=True)
        table.add_column("pushes down", no_wrap=True)
        for feature in layer["features"][:10]:
            effects = feature.get("effects") or {"up": [], "down": []}
            pushed = (", ".join(repr(p["name"])[1:-1] for p in effects[way][:3]) for way in ("up", "down"))
            table.add_row(str(feature["index"]), Text(feature["label"]), *map(Text, pushed))
        if "monosemantic" in layer:
            counts = layer["monosemantic"]
            table.caption = (
                f"{counts['without_constant']} of the first {counts['top']} are over 90 % one term "
                f"({counts['paper']} in the paper's way, the constant included)."
            )
            table.caption_justify = "left"
        parts.append(table)
    for one in found.get("idle", []):
        parts.append(
            f"{one['layer']}: {len(one['features'])} of the first {one['considered']} features have incoming "
            f"but no outgoing edges worth the name (Ê over {one['incoming']:.3g}, {one['outgoing']:.3g})"
        )
    parts.append(f"\nStored as features.json and examples.json in {found['run']}.")
    return parts
