"""One piece of a reproduction: a run of one model and basis, ablated and measured, all in its folder.

Every stage is stored as it ends and goes on where it was killed: the graph, `ablation.json`, `modules.json`,
and last `reproduction.json`, which says that the piece is finished.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from interbasis.ablation.evaluation import Evaluation
from interbasis.ablation.search import DEFAULT_TOLERANCE
from interbasis.ablation.sparsity import interaction_sparsity, plain
from interbasis.communities.modules import find_modules
from interbasis.data.batches import Batches
from interbasis.features.relevance import idle
from interbasis.fit.build import build
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load
from interbasis.paper.plan import Depth, Plan
from interbasis.run.ablate import AblationRequest, ablate_run
from interbasis.run.opened import OpenRun, open_run
from interbasis.run.request import make_request
from interbasis.run.results import load_result, save_result
from interbasis.run.specs import open_model
from interbasis.runtime.checkpoints import Checkpoints
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Basis
from interbasis.runtime.progress import Progress, silent
from interbasis.terminal.modules import plain_modules

RESOLUTIONS = (0.5, 1.0)
MOST_EDGES = 100_000
"""Edges among which modules are still looked for."""
NAME = "reproduction"
VERSION = 1
"""Of what `reproduction.json` holds; pieces that hold something else are measured again."""

Measure = Callable[[OpenRun, dict[str, Any]], dict[str, Any]]
"""What is measured for one task alone, given the run and what was measured for any."""


def finished(plan: Plan, seed: int, basis: str) -> dict[str, Any] | None:
    """What a finished piece holds; None where it is not finished, or was with another depth."""
    folder = plan.folder(seed, basis)
    if not (folder / "config.json").is_file():
        return None
    found = load_result(folder, NAME)
    return found if found and found["depth"] == _depth(plan.depth) else None


def do_piece(
    plan: Plan, seed: int, basis: Basis, weights: Path, measure: Measure, progress: Progress = silent
) -> dict[str, Any]:
    """Build, ablate and measure; what is finished already is taken as it is."""
    build_run(plan, plan.folder(seed, basis), f"{plan.model_family}:{weights}", basis, seed, progress)
    there = finished(plan, seed, basis)
    if there is not None:
        return there
    run = open_run(plan.folder(seed, basis))
    begun = time.monotonic()
    ablation, restart = ablated(run, plan.depth)
    middle = time.monotonic()
    result: dict[str, Any] = {
        "seed": seed,
        "basis": basis,
        "run": run.folder.name,
        "checkpoint": str(weights),
        "model_fingerprint": run.graph.provenance.model_fingerprint,
        "depth": _depth(plan.depth),
        "train_accuracy": Evaluation(run.network, run.graph, run.data(None, "train")).baseline.value,
        "test_accuracy": ablation["baseline"],
        "layers": [{"name": layer.name, "features": layer.features} for layer in run.graph.layers],
        "edges": [
            {key: row[key] for key in ("from", "to", "count", "stable_count", "possible", "epsilon")}
            for row in ablation["sections"]
        ],
        "nodes": [{"name": row["name"], "count": row["count"]} for row in ablation["layers"]],
        "idle": [asdict(one) for one in idle(run.graph)],
        "idle_by_need": [
            asdict(one)
            for one in idle(run.graph, thresholds=[row["epsilon"] for row in ablation["sections"]])
        ],
        "sparsity": plain(interaction_sparsity(run.graph)),
        "modules": [_modules(run, ablation, value, plan.depth) for value in RESOLUTIONS],
    }
    result |= measure(run, result)
    result["seconds"] = {
        "build": round(sum(run.graph.provenance.timings.values()), 1),
        "ablation": round(middle - begun, 1) if restart else None,
        "measures": round(time.monotonic() - middle, 1),
    }
    save_result(run.folder, NAME, result)
    return result


def build_run(plan: Plan, folder: Path, model: str, basis: Basis, seed: int, progress: Progress) -> None:
    """The run of a model in a basis, in its folder: built, or finished, or there already."""
    asked = make_request(
        {"model": model, "data": plan.data_spec, "basis": basis, "seed": seed} | plan.settings
    )
    opened = open_model(model)
    if (folder / "config.json").is_file():
        check_same_build(folder, opened.network.fingerprint(), asked.settings.model_dump())
        Checkpoints(folder, "build", restart=True).finish()
        return
    data = opened.open_data(asked.data)
    resolved = asked.model_copy(update={"data": data.spec, "threads": torch.get_num_threads()})
    graph = build(
        opened.network, data, model=model, resume=folder, progress=progress,
        request=resolved, **asked.settings.model_dump(),
    )  # fmt: skip
    graph.save(folder)


def check_same_build(folder: Path, fingerprint: str, settings: dict[str, Any]) -> InteractionGraph:
    """The graph in a folder, which must be one of these weights and settings."""
    there = load(folder)
    if there.provenance.model_fingerprint != fingerprint:
        raise InterbasisError(f"{folder} was built from other weights; name another --out, or delete it")
    for name, wanted in settings.items():
        found = getattr(there.config, name)
        if found != wanted and not (name == "dtype" and wanted is None):
            raise InterbasisError(
                f"{folder} was built with {name} = {found}, not {wanted}; name another --out, or delete it"
            )
    return there


def ablated(run: OpenRun, depth: Depth) -> tuple[dict[str, Any], bool]:
    """Edges and nodes required, and whether they had still to be found."""
    stored = load_result(run.folder, "ablation")
    if stored is not None and _suffices(stored, depth, run):
        return stored, False
    return ablate_run(run, AblationRequest(nodes=depth.nodes, metric="accuracy", stable=depth.stable)), True


def _suffices(stored: dict[str, Any], depth: Depth, run: OpenRun) -> bool:
    """Whether an ablation holds all that is asked for, at the paper's tolerance on the run's test data."""
    sections = len(run.graph.edges)
    stable = all(row["stable_count"] is not None for row in stored["sections"])
    return (
        stored["metric"] == "accuracy"
        and stored["tolerance"] == DEFAULT_TOLERANCE["accuracy"]
        and stored["data"]["fingerprint"] == Batches(run.data()).fingerprint()
        and len(stored["sections"]) == sections
        and (stable or not depth.stable)
        and (len(stored["layers"]) == sections or not depth.nodes)
    )


def _modules(run: OpenRun, ablation: dict[str, Any], resolution: float, depth: Depth) -> dict[str, Any]:
    """Leiden's modules over the edges that are needed; a graph with next to none, or with all, has none."""
    edges = sum(row["count"] for row in ablation["sections"])
    if edges > MOST_EDGES:
        return {
            "resolution": resolution,
            "refused": f"{edges:,} edges are needed, too many to look for modules",
        }
    epsilons = [row["epsilon"] for row in ablation["sections"]]
    try:
        found = find_modules(run.graph, epsilons, resolution, null_graphs=depth.null_graphs)
    except InterbasisError as error:
        return {"resolution": resolution, "refused": str(error)}
    result = plain_modules(found, [])
    if resolution == 1:
        save_result(run.folder, "modules", result | {"epsilon_from_ablation": True})
    return result


def _depth(depth: Depth) -> dict[str, Any]:
    return asdict(depth) | {"version": VERSION}
