"""Two runs beside each other: features, edges, ablations and modules, of one model or of two."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from interbasis.analysis.feature_matching import MatchedFeatures, match
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import load_result
from interbasis.analysis.summary import LayerSummary, RunSummary, SectionSummary, summarise
from interbasis.analysis.workspace import Workspace
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Measured, Metric, Record
from interbasis.data.batches import Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.graph.store import load

SHARED_SQUARE = 0.5
"""Two features are shared if their squared overlap is larger: neither overlaps as much with any other."""

MatchedBy = Literal["correlation", "directions", "measured correlation"]
"""Overlap that features were matched by (`analysis/feature_matching.py`)."""


class ComparedRun(Record):
    """One of the two runs."""

    run: str
    """Folder of the run."""
    summary: RunSummary
    metric: Metric | None
    """Metric of its ablation; None where it was not ablated."""
    baseline: float | None
    """Value of the metric without ablation: the model's own."""
    modules: int | None
    """Number of modules; None where they have not been looked for."""
    modularity: float | None


class FeatureMatch(Record):
    """Features of one layer in both runs, matched one to one."""

    pairs: tuple[tuple[int, int, float], ...]
    """Feature of the first run, of the second, and their overlap; none where the coordinates are the same."""
    overlap: Measured
    """Overlaps averaged over the features of both runs, weighted by what ranks them; unmatched ones are 0."""
    mean: Measured
    """Plain mean over the pairs."""
    chance: float | None
    """The same after the second run's features are rotated at random; None where coordinates are fixed."""
    shared: int
    """Pairs with a squared overlap of more than ½."""


class ComparedLayer(Record):
    """One node layer in both runs; pairs are in the order of the runs."""

    name: str
    width: int
    summaries: tuple[LayerSummary, LayerSummary]
    match: FeatureMatch | None
    """None where the overlap of features is not known."""
    nodes_required: tuple[int | None, int | None]
    """None where the run was not ablated there."""


class ComparedSection(Record):
    """One section in both runs."""

    name: str
    summaries: tuple[SectionSummary, SectionSummary]
    edge_correlation: Measured | None
    """Correlation of Ê between matched features; None where features were not matched."""
    strongest: int
    """Number of the first run's strongest edges, which carry 90 % of its Ê²."""
    strongest_shared: float | None
    """Share of these that are among as many strongest edges of the second run, feature for feature."""
    edges_required: tuple[int | None, int | None]
    """None where the run was not ablated there."""


class Comparison(Record):
    """Two runs; layers by name, sections by the name of their source layer."""

    runs: tuple[ComparedRun, ComparedRun]
    same_model: bool
    """Whether both are runs of the same weights."""
    same_data: bool
    different_settings: dict[str, tuple[Any, Any]]
    """Settings of the builds that differ, of whatever type they are."""
    matched_by: MatchedBy
    layers: dict[str, ComparedLayer]
    sections: dict[str, ComparedSection]
    module_agreement: float | None
    """Adjusted mutual information of both partitions over matched features; None without two partitions."""
    not_compared: str | None = None
    """Why edges and nodes required are left out; None where both runs were ablated alike."""


def compare(run: str | Path, other: str | Path) -> Comparison:
    """Compare two runs, of one model or of two with the same node layers.

    Features are matched one to one: those of one model by their correlation over the data, those of models
    with different weights by the cosine of their directions in the metrics of both runs. Models that have
    nothing in common but the data, such as two seeds, require `Run.compare` with data.

    Args:
        run: Folder of a run.
        other: Folder of another run.

    Returns:
        Both runs, layer by layer and section by section.

    Raises:
        InterbasisError: The runs have different node layers.
    """
    return compare_graphs((run, other), (load(run), load(other)))


def compare_on(first: Workspace, second: Workspace, data: Data) -> Comparison:
    """Compare two runs, with features matched by their correlation over data on which both models run."""
    from interbasis.analysis.feature_correlations import measured_correlations

    folders = first.folder, second.folder
    assert folders[0] is not None
    assert folders[1] is not None
    graphs = first.graph, second.graph
    _require_same_layers(folders, graphs)
    networks = (
        first.network.to(graphs[0].config.torch_dtype),
        second.network.to(graphs[1].config.torch_dtype),
    )
    measured = measured_correlations(networks, graphs, data)
    return compare_graphs((folders[0], folders[1]), graphs, measured)


def compare_graphs(
    folders: tuple[str | Path, str | Path],
    graphs: tuple[InteractionGraph, InteractionGraph],
    measured: Sequence[Tensor] | None = None,
) -> Comparison:
    """Compare two graphs and the results beside them; ``measured`` are correlations of their features."""
    _require_same_layers(folders, graphs)
    a, b = summarise(graphs[0]), summarise(graphs[1])
    ablated = [load_result(run, AblationResult, graph) for run, graph in zip(folders, graphs, strict=True)]
    partitions = [load_result(run, ModulesResult, graph) for run, graph in zip(folders, graphs, strict=True)]
    not_compared = _difference(*ablated)
    nodes: list[dict[str, int | None]] = [{}, {}]
    edges: list[dict[str, int]] = [{}, {}]
    for k, result in enumerate(ablated):
        if result is not None and not not_compared:
            nodes[k] = {name: layer.count for name, layer in result.layers.items()}
            edges[k] = result.counts
    before, after = (graph.config.model_dump() for graph in graphs)
    settings = {name: (value, after[name]) for name, value in before.items()}
    matched = match(*graphs, measured)
    layers = {
        name: ComparedLayer(
            name=name,
            width=a.layers[name].width,
            summaries=(a.layers[name], b.layers[name]),
            match=_feature_match(matched.get(name), graphs[0].layers[k], graphs[1].layers[k]),
            nodes_required=(nodes[0].get(name), nodes[1].get(name)),
        )
        for k, name in enumerate(a.layers)
    }
    sections = {
        source: _section(
            (a.sections[source], b.sections[source]),
            _matched_edges(graphs, matched, source),
            (edges[0].get(source), edges[1].get(source)),
        )
        for source in a.sections
        if source in b.sections
    }
    fingerprints = [graph.provenance.model_fingerprint for graph in graphs]
    same_model = fingerprints[0] == fingerprints[1]
    first, second = (
        ComparedRun(
            run=str(folder),
            summary=summary,
            metric=ablation and ablation.metric,
            baseline=ablation and ablation.baseline,
            modules=partition and partition.modules,
            modularity=partition and partition.modularity,
        )
        for folder, summary, ablation, partition in zip(folders, (a, b), ablated, partitions, strict=True)
    )
    return Comparison(
        runs=(first, second),
        same_model=same_model,
        same_data=graphs[0].provenance.data_fingerprints == graphs[1].provenance.data_fingerprints,
        different_settings={name: pair for name, pair in settings.items() if pair[0] != pair[1]},
        matched_by="measured correlation" if measured else "correlation" if same_model else "directions",
        layers=layers,
        sections=sections,
        module_agreement=_module_agreement(partitions[0], partitions[1], matched),
        not_compared=not_compared,
    )


def _feature_match(matched: MatchedFeatures | None, a: LayerBasis, b: LayerBasis) -> FeatureMatch | None:
    if matched is None:
        return None
    weights = []
    for basis, features in ((a, matched.first), (b, matched.second)):
        ranking = torch.ones(basis.features) if basis.eigenvalues is None else basis.eigenvalues
        ranking = ranking.double().clamp_min(0)
        weights.append(ranking[features] / ranking[basis.first_feature :].sum())
    rows = zip(matched.first.tolist(), matched.second.tolist(), matched.overlaps.tolist(), strict=True)
    fixed = a.identity and b.identity
    return FeatureMatch(
        pairs=() if fixed else tuple(rows),
        overlap=float(((weights[0] + weights[1]) / 2 * matched.overlaps).sum()),
        mean=float(matched.overlaps.mean()),
        chance=matched.chance,
        shared=int((matched.overlaps.square() > SHARED_SQUARE).sum()),
    )


def _matched_edges(
    graphs: tuple[InteractionGraph, InteractionGraph], matched: Mapping[str, MatchedFeatures], source: str
) -> tuple[Tensor, Tensor] | None:  # [pairs out, pairs in] each
    """Ê of both runs between matched features of a section; None where an end was not matched."""
    k = graphs[0].layer_names.index(source)
    ends = matched.get(source), matched.get(graphs[0].layer_names[k + 1])
    if ends[0] is None or ends[1] is None:
        return None
    return (
        graphs[0].edges[k].double()[ends[1].first][:, ends[0].first],
        graphs[1].edges[k].double()[ends[1].second][:, ends[0].second],
    )


def _section(
    summaries: tuple[SectionSummary, SectionSummary],
    edges: tuple[Tensor, Tensor] | None,
    required: tuple[int | None, int | None],
) -> ComparedSection:
    strongest = summaries[0].edges_for_90_percent
    correlation = shared = None
    if edges is not None and edges[0].numel() > 1 and strongest:
        first, second = (part.flatten() for part in edges)
        correlation = float(torch.corrcoef(torch.stack([first, second]))[0, 1])
        strongest = min(strongest, len(first))
        best = [
            torch.zeros(len(part), dtype=torch.bool).index_fill_(0, part.topk(strongest).indices, True)
            for part in (first, second)
        ]
        shared = int((best[0] & best[1]).sum()) / strongest
    return ComparedSection(
        name=summaries[0].name, summaries=summaries, edge_correlation=correlation, strongest=strongest,
        strongest_shared=shared, edges_required=required,
    )  # fmt: skip


def _module_agreement(
    a: ModulesResult | None, b: ModulesResult | None, matched: Mapping[str, MatchedFeatures]
) -> float | None:
    """Adjusted mutual information over matched features that are in a module of both runs."""
    if a is None or b is None:
        return None
    from sklearn.metrics import adjusted_mutual_info_score

    pairs = [
        (a.layers[name][i], b.layers[name][j])
        for name, layer in matched.items()
        if name in a.layers and name in b.layers
        for i, j in zip(layer.first.tolist(), layer.second.tolist(), strict=True)
    ]
    inside = [pair for pair in pairs if min(pair) >= 0]
    return float(adjusted_mutual_info_score(*zip(*inside, strict=True))) if inside else None


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


def _require_same_layers(
    folders: tuple[str | Path | None, str | Path | None], graphs: tuple[InteractionGraph, InteractionGraph]
) -> None:
    names = [graph.layer_names for graph in graphs]
    if names[0] != names[1]:
        raise InterbasisError(
            f"{folders[0]} and {folders[1]} have different node layers ({', '.join(names[0])} and "
            f"{', '.join(names[1])}); compare models of one shape, built with the same ones"
        )
    for a, b in zip(graphs[0].layers, graphs[1].layers, strict=True):
        if a.width != b.width:
            raise InterbasisError(
                f"{folders[0]} and {folders[1]} have different widths at {a.name} ({a.width} and {b.width}); "
                "compare models of one shape"
            )
