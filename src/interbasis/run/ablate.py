"""Ablations of a run on disk: what `interbasis ablate` does."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType
from torch import Tensor

from interbasis.ablation.metrics import default_metric, worst_allowed
from interbasis.ablation.search import (
    DEFAULT_TOLERANCE,
    EdgesRequired,
    NodesRequired,
    Search,
    ToleranceError,
    Visited,
)
from interbasis.graph.store import graph_digest
from interbasis.run.opened import OpenRun
from interbasis.run.results import load_result, load_tensors, save_result
from interbasis.run.summary import make_table
from interbasis.runtime.checkpoints import Checkpoints, environment
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Metric
from interbasis.runtime.progress import progress_bar


@dataclass(frozen=True)
class AblationRequest:
    edges: bool = True
    nodes: bool = False
    metric: Metric | None = None
    tolerance: float | None = None
    sections: list[str] | None = None
    """Source layers of the sections to do; all without."""
    stable: bool = True
    intervals: bool = False
    """Bootstrap intervals of the edges required, over the samples."""


def ablate_run(run: OpenRun, request: AblationRequest, data: str | None = None) -> dict[str, Any]:
    """Edges and nodes required, stored in the run; what was found before with the same settings stays."""
    metric: Metric = request.metric or default_metric(run.network)
    samples = run.data(data)
    search = Search.of(run.network, run.graph, samples, metric, request.tolerance, request.intervals)
    tolerance = DEFAULT_TOLERANCE[metric] if request.tolerance is None else request.tolerance
    settings = {
        "metric": metric,
        "tolerance": tolerance,
        "data": {
            "spec": samples.spec,
            "samples": len(samples),
            "fingerprint": search.evaluation.batches.fingerprint(),
        },
    }
    before, masks = _before(run, settings)
    belongs = {"graph": graph_digest(run.folder)} | environment()
    kept = Checkpoints(run.folder, "ablation", settings | asdict(request) | belongs)
    chosen = _chosen(run, request.sections)
    with progress_bar() as advance:
        if request.edges:
            try:
                search.check_tolerance_is_reachable(chosen, kept.checkpoint("edges.all", total=len(chosen)))
            except ToleranceError:
                kept.finish()  # nothing will come of it
                raise
            for k in chosen:
                found = search.edges(k, advance, request.stable, kept.checkpoint(f"edges.{k}", total=2**62))
                before["sections"][k] = _edges(found)
                masks[f"edge_mask.{k}"] = found.mask
                if found.draws is not None:
                    masks[f"count_draws.{k}"] = found.draws
        if request.nodes:
            for k in range(len(run.graph.layers) - 1):
                nodes = search.nodes(k, advance, None, kept.checkpoint(f"nodes.{k}", total=2**62))
                before["layers"][k] = _nodes(nodes)
    result = settings | {"baseline": search.evaluation.baseline.value} | _summary(before, run)
    save_result(run.folder, "ablation", result, masks)
    kept.finish("ablation")
    return result


def _before(run: OpenRun, settings: dict[str, Any]) -> tuple[dict[str, dict[int, Any]], dict[str, Tensor]]:
    """What is stored already, where it was found with the same settings."""
    names = [layer.name for layer in run.graph.layers]
    stored = load_result(run.folder, "ablation")
    if not stored or _decisive(stored) != _decisive(settings):
        return {"sections": {}, "layers": {}}, {}
    found = {
        "sections": {names.index(row["from"]): row for row in stored["sections"]},
        "layers": {names.index(row["name"]): row for row in stored["layers"]},
    }
    return found, load_tensors(run.folder, "ablation")


def _decisive(settings: dict[str, Any]) -> tuple[Any, ...]:
    """What results must have in common to be put together; data by what they hold, not by their name."""
    return settings["metric"], settings["tolerance"], settings["data"]["fingerprint"]


def _chosen(run: OpenRun, sections: list[str] | None) -> list[int]:
    names = [layer.name for layer in run.graph.layers[:-1]]
    for name in sections or []:
        if name not in names:
            raise InterbasisError(f"there is no section from {name!r}; expected one of {', '.join(names)}")
    return [k for k, name in enumerate(names) if sections is None or name in sections]


def _edges(found: EdgesRequired) -> dict[str, Any]:
    return {
        "from": found.source,
        "to": found.target,
        "count": found.count,
        "epsilon": found.epsilon,
        "kept_fraction": found.kept_fraction,
        "possible": found.possible,
        "value": found.value,
        "stable_count": found.stable_count,
        "curve": [_visited(visited) for visited in found.curve],
    } | ({} if found.interval is None else {"interval": list(found.interval)})


def _nodes(found: NodesRequired) -> dict[str, Any]:
    return {
        "name": found.layer,
        "count": found.count,
        "curve": [{"kept": v.kept, "value": v.value} for v in found.curve],
    }


def is_measured(point: Mapping[str, Any]) -> bool:
    """Whether a stored trial was looked at in full; else its value only bounds what the metric can be."""
    return not point.get("bound", False)


def _visited(visited: Visited) -> dict[str, Any]:
    row = {"kept": visited.kept, "value": visited.value, "passed": visited.passed}
    return row if visited.complete else row | {"bound": True}


def _summary(found: dict[str, dict[int, Any]], run: OpenRun) -> dict[str, Any]:
    sections = [found["sections"][k] for k in sorted(found["sections"])]
    layers = [found["layers"][k] for k in sorted(found["layers"])]
    return {
        "edges_required": [row["count"] for row in sections],
        "sections": sections,
        "nodes_required": [row["count"] for row in layers],
        "layers": layers,
    }


def tables(result: dict[str, Any]) -> list[RenderableType]:
    """For a terminal."""
    metric = result["metric"].replace("_", "-")
    limit = worst_allowed(result["metric"], result["baseline"], result["tolerance"])
    parts: list[RenderableType] = [
        f"\n{metric} of the untouched model {result['baseline']:.5f} on {result['data']['samples']:,} "
        f"samples; what passes is {limit:.5f} or better\n"
    ]
    if result["sections"]:
        table = make_table(
            "Edges required", "section", "edges", "of", "ε", metric, "every larger passes from"
        )
        for row in result["sections"]:
            stable = "–" if row["stable_count"] is None else f"{row['stable_count']:,}"
            among = "  [{:,}, {:,}]".format(*row["interval"]) if "interval" in row else ""
            differs = "" if row["stable_count"] in (None, row["count"]) else "  ≠"
            table.add_row(
                f"{row['from']} → {row['to']}", f"{row['count']:,}{among}", f"{row['possible']:,}",
                f"{row['epsilon']:.3g}" if row["count"] else "–", f"{row['value']:.5f}", stable + differs,
            )  # fmt: skip
        table.caption = (
            "Edges: found by bisection, as in the paper; the constant's are free. ε: the smallest edge kept. "
            "Last column: the smallest count on a logarithmic grid from which every larger one passes; "
            "≠ says that the bisection ended elsewhere, because the metric is not monotone. [ ]: 95 % "
            "bootstrap interval over the samples, where asked for.\n"
        )
        parts.append(table)
    if result["layers"]:
        table = make_table("Nodes required", "layer", "nodes", "of")
        for row in result["layers"]:
            count = "more than there are" if row["count"] is None else str(row["count"])
            table.add_row(row["name"], count, str(row["curve"][-1]["kept"]))
        table.caption = "The smallest number of leading features that passes; the constant counts."
        parts.append(table)
    return parts
