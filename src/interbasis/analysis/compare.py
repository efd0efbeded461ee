"""Two runs of one model beside each other: features, edges, ablations and modules."""

from pathlib import Path
from typing import Any

import torch

from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import load_result
from interbasis.analysis.summary import LayerSummary, RunSummary, SectionSummary, summarise
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Record
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.store import load


class ComparedRun(Record):
    """One of the two runs."""

    run: str
    """Folder of the run."""
    summary: RunSummary
    modules: int | None
    """Number of modules; None where they have not been looked for."""
    modularity: float | None


class ComparedLayer(Record):
    """One node layer in both runs; pairs are in the order of the runs."""

    name: str
    width: int
    summaries: tuple[LayerSummary, LayerSummary]
    shared_subspace: float
    """Share of the space read by the smaller set of features that the other reads, too, 0 to 1."""
    nodes_required: tuple[int | None, int | None]
    """None where the run was not ablated there."""


class ComparedSection(Record):
    """One section in both runs."""

    name: str
    summaries: tuple[SectionSummary, SectionSummary]
    edges_required: tuple[int | None, int | None]
    """None where the run was not ablated there."""


class Comparison(Record):
    """Two runs of one model; layers by name, sections by the name of their source layer."""

    runs: tuple[ComparedRun, ComparedRun]
    model: str
    same_data: bool
    different_settings: dict[str, tuple[Any, Any]]
    """Settings of the builds that differ, of whatever type they are."""
    layers: dict[str, ComparedLayer]
    sections: dict[str, ComparedSection]
    not_compared: str | None = None
    """Why edges and nodes required are left out; None where both runs were ablated alike."""


def compare(run: str | Path, other: str | Path) -> Comparison:
    """Compare two runs of the same model, side by side.

    Args:
        run: Folder of a run.
        other: Folder of another run.

    Returns:
        Both runs, layer by layer and section by section.

    Raises:
        InterbasisError: The runs are of different models or have different node layers.
    """
    graphs = load(run), load(other)
    _require_same_model(run, other, *graphs)
    a, b = summarise(graphs[0]), summarise(graphs[1])
    ablated = [load_result(run, AblationResult, graphs[0]), load_result(other, AblationResult, graphs[1])]
    not_compared = _difference(*ablated)
    nodes: list[dict[str, int | None]] = [{}, {}]
    edges: list[dict[str, int]] = [{}, {}]
    for k, result in enumerate(ablated):
        if result is not None and not not_compared:
            nodes[k] = {name: layer.count for name, layer in result.layers.items()}
            edges[k] = result.counts
    before, after = (graph.config.model_dump() for graph in graphs)
    settings = {name: (value, after[name]) for name, value in before.items()}
    layers = {
        name: ComparedLayer(
            name=name,
            width=a.layers[name].width,
            summaries=(a.layers[name], b.layers[name]),
            shared_subspace=_overlap(graphs[0].layers[k], graphs[1].layers[k]),
            nodes_required=(nodes[0].get(name), nodes[1].get(name)),
        )
        for k, name in enumerate(a.layers)
    }
    sections = {
        source: ComparedSection(
            name=a.sections[source].name,
            summaries=(a.sections[source], b.sections[source]),
            edges_required=(edges[0].get(source), edges[1].get(source)),
        )
        for source in a.sections
        if source in b.sections
    }
    return Comparison(
        runs=(_run(run, graphs[0], a), _run(other, graphs[1], b)),
        model=a.model,
        same_data=graphs[0].provenance.data_fingerprints == graphs[1].provenance.data_fingerprints,
        different_settings={name: pair for name, pair in settings.items() if pair[0] != pair[1]},
        layers=layers,
        sections=sections,
        not_compared=not_compared,
    )


def _difference(a: AblationResult | None, b: AblationResult | None) -> str | None:
    """Sentence about how the conditions of two ablations differ; None where their counts can be compared."""
    if a is None or b is None or a.conditions == b.conditions:
        return None
    first, second = (
        {
            "metric": result.metric.replace("_", "-"),
            "tolerance": f"{result.tolerance:g}",
            "tokens masked": "all" if result.all_tokens else "counted",
            "samples": f"{result.data.samples:,}",
            "inputs": result.data.fingerprint[:8],
            "labels": result.data.labels[:8] or "as the data say",
        }
        for result in (a, b)
    )
    different = ", ".join(f"{name} {x} / {second[name]}" for name, x in first.items() if x != second[name])
    return (
        f"edges and nodes required are not compared, since the runs were ablated differently ({different}); "
        "ablate both with the same tolerance and data"
    )


def _run(folder: str | Path, graph: InteractionGraph, summary: RunSummary) -> ComparedRun:
    partition = load_result(folder, ModulesResult, graph)
    modules, modularity = (None, None) if partition is None else (partition.modules, partition.modularity)
    return ComparedRun(run=str(folder), summary=summary, modules=modules, modularity=modularity)


def _require_same_model(run: str | Path, other: str | Path, a: InteractionGraph, b: InteractionGraph) -> None:
    if a.provenance.model_fingerprint != b.provenance.model_fingerprint:
        raise InterbasisError(
            f"{run} and {other} are runs of different models ({a.provenance.shown_model} and "
            f"{b.provenance.shown_model}, whose weights differ); compare two runs of "
            "one model"
        )
    if a.layer_names != b.layer_names:
        raise InterbasisError(
            f"{run} and {other} have different node layers ({', '.join(a.layer_names)} and "
            f"{', '.join(b.layer_names)}); build them with the same ones"
        )


def _overlap(basis: LayerBasis, other: LayerBasis) -> float:
    """‖Q₁Q₂ᵀ‖² / min(r₁, r₂) for orthonormal bases Q of the rows of C, the constant left out of both."""
    if basis.identity or other.identity:  # reads everything, at a vocabulary's width too
        return float(min(basis.features, other.features) > 0)
    spaces = []
    for transform in (basis.transform, other.transform):
        rows = transform[1:, 1:] if transform[0, 1:].abs().sum() == 0 else transform
        rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
        spaces.append(torch.linalg.qr(rows.T.double()).Q)
    least = min(space.shape[1] for space in spaces)
    return ((spaces[0].T @ spaces[1]).square().sum() / max(least, 1)).item()
