"""Figures of a report: those that its runs hold the data for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from matplotlib.figure import Figure

from interbasis.analysis.differences.records import Difference, DifferenceSeries
from interbasis.show import figures
from interbasis.show.figures.differences import difference_heat_map
from interbasis.show.report.record import ReportedRun

MAX_LAYERS_ACROSS = 5
"""Node layers in one figure of a deep network."""
MAX_FEATURES_WITH_BARS = 12
MAX_PROFILES = 8
"""Position profiles in one figure, two rows of them."""

T = TypeVar("T")
NamedFigure = tuple[str, str, Figure]
"""Name of the file, title, figure."""
Counts = Mapping[str, int | None]
"""Edges or nodes required by section or layer; None where they were not measured."""


def report_figures(runs: Sequence[ReportedRun], kinds: Iterable[str] | None = None) -> Iterator[NamedFigure]:
    """Figures of certain kinds, or of all, made one after another."""
    for kind in KINDS if kinds is None else kinds:
        yield from KINDS[kind](runs)


def heat_maps(differences: Sequence[Difference]) -> Iterator[NamedFigure]:
    """Sections by models, for differences between models with the same sections."""
    groups = _grouped(differences, lambda difference: list(difference.sections))
    for number, group in enumerate(groups):
        figure = difference_heat_map(DifferenceSeries(differences=tuple(group)))
        yield f"differences-{number}", "Where models differ", figure


def is_opening(name: str) -> bool:
    """Whether a figure of this name is a run's graph, or the first part of it."""
    return name.startswith("graph-") and name.endswith("-0")


def _grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Items with the same key together, in the order of the first of each."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(repr(key(item)), []).append(item)
    return list(groups.values())


def _curves(runs: Sequence[ReportedRun]) -> Iterator[NamedFigure]:
    with_curves = [(run, run.record.curves) for run in runs if run.record.curves]
    groups = _grouped(with_curves, lambda pair: (pair[0].graph.layer_names, pair[1].curves.metric))
    for number, group in enumerate(groups):
        curves_by_run = {run.name: curves for run, curves in group}
        yield f"curves-{number}", "The metric as edges are ablated", figures.ablation_curves(curves_by_run)


def _spectra(runs: Sequence[ReportedRun]) -> Iterator[NamedFigure]:
    for number, alike in enumerate(_grouped(runs, lambda run: run.graph.layer_names)):
        spectra = figures.eigenvalue_spectra({run.name: run.graph for run in alike})
        yield f"spectra-{number}", "Importance of features", spectra


def _for_each(
    draw: Callable[[ReportedRun, int], Iterator[NamedFigure]],
) -> Callable[[Sequence[ReportedRun]], Iterator[NamedFigure]]:
    """Figures of every run by itself."""
    return lambda runs: (figure for number, run in enumerate(runs) for figure in draw(run, number))


def _graphs(run: ReportedRun, number: int) -> Iterator[NamedFigure]:
    if not run.graph.edges:
        return
    last, step = len(run.graph.layers) - 1, MAX_LAYERS_ACROSS - 1
    for part, start in enumerate(starts := range(0, last, step)):
        end = min(start + step, last)
        ends = f", {run.graph.layers[start].name} to {run.graph.layers[end].name}"
        where = ends if len(starts) > 1 else ""
        figure = figures.interaction_graph(
            run.graph,
            needed=run.record.edge_masks,
            labels=run.labels,
            modules=run.record.modules.layers if run.record.modules else None,
            layers=(start, end),
        )
        yield f"graph-{number}-{part}", f"Interaction graph of {run.name}{where}", figure


def _required(runs: Sequence[ReportedRun]) -> Iterator[NamedFigure]:
    ablated = [(run, run.record.ablation) for run in runs if run.record.ablation]
    groups = _grouped(
        ablated, lambda pair: (pair[0].graph.layer_names, pair[1].conditions, pair[0].is_robust)
    )
    for number, group in enumerate(groups):
        alike, ablation = [run for run, _ in group], group[0][1]
        rule = (
            f"Required: the largest that keep {ablation.metric.replace('_', '-')} within "
            f"{ablation.tolerance:g} of the original model's, one place at a time."
        )
        if alike[0].is_robust:
            rule += " Edges: robust counts."
        for what, rows, sizes in (
            ("edges", [run.edges_required for run in alike], alike[0].edge_counts),
            ("nodes", [run.nodes_required for run in alike], alike[0].node_counts),
        ):
            places = [place for place in rows[0] if any(row[place] is not None for row in rows)]
            if not places:
                continue
            if len(alike) == 1:
                counted = {place: (rows[0][place] or 0, sizes[place]) for place in places}
                figure = figures.required_shares(counted, what, rule)
            else:
                counts = _counts_by_basis(alike, rows, places)
                figure = figures.required(counts, places, f"{what} required", rule)
            yield f"{what}-required-{number}", f"{what.capitalize()} required", figure


def _counts_by_basis(
    runs: Sequence[ReportedRun], rows: Sequence[Counts], places: Sequence[str]
) -> dict[str, list[list[int | None]]]:
    """{basis: counts [models][places]}; by the runs' names where a basis occurs twice for a model."""
    models = [run.graph.provenance.model_fingerprint for run in runs]
    bases = [run.summary.basis for run in runs]
    listed = [[row[place] for place in places] for row in rows]
    if len(set(zip(bases, models, strict=True))) < len(runs):
        return {run.name: [row] for run, row in zip(runs, listed, strict=True)}
    distinct = list(dict.fromkeys(models))
    counts: dict[str, list[list[int | None]]] = {}
    for basis, model, row in zip(bases, models, listed, strict=True):
        by_model = counts.setdefault(basis, [[None] * len(row) for _ in distinct])
        by_model[distinct.index(model)] = row
    return counts


def _monosemanticity(runs: Sequence[ReportedRun]) -> Iterator[NamedFigure]:
    shares = {
        run.name: [
            feature.fourier.terms[0].share
            for layer in run.analysed_layers
            for feature in layer.features
            if feature.fourier and feature.fourier.terms
        ]
        for run in runs
    }
    if known := {name: values for name, values in shares.items() if values}:
        title = "Features of all layers that were looked at, outputs left out."
        figure = figures.monosemanticity(known, title)
        yield "monosemanticity", "How much of a feature one term explains", figure


def _classes(run: ReportedRun, number: int) -> Iterator[NamedFigure]:
    bars: dict[str, dict[str, list[float]]] = {}
    names: dict[str, list[str]] = {}
    for layer in run.layers.values():
        known = [feature.classes for feature in layer.features.values() if feature.classes]
        best = [
            max(zip(classes.auroc, classes.names, strict=True), key=lambda pair: abs(pair[0] - 0.5))
            for classes in known[:MAX_FEATURES_WITH_BARS]
        ]
        if best:
            bars[layer.name] = {run.name: [auroc for auroc, _ in best]}
            names[layer.name] = [name for _, name in best]
    if bars:
        figure = figures.auroc_bars(bars, "the class below the bar, each feature's best", names=names)
        title = f"Classes that single features of {run.name} separate from the others"
        yield f"auroc-{number}", title, figure


def _positions(run: ReportedRun, number: int) -> Iterator[NamedFigure]:
    """Position profiles of the first layer that has any."""
    for layer in run.layers.values():
        shares = {
            index: feature.positions.share for index, feature in layer.features.items() if feature.positions
        }
        if shares:
            best = sorted(sorted(shares, key=lambda index: -shares[index])[:MAX_PROFILES])
            title = f"Features of {run.name} that position explains best, {layer.name}"
            known = [layer.features[index] for index in best]
            yield f"positions-{number}", title, figures.position_profiles(known, layer.name)
            return


KINDS: dict[str, Callable[[Sequence[ReportedRun]], Iterator[NamedFigure]]] = {
    "graph": _for_each(_graphs),
    "required": _required,
    "curves": _curves,
    "monosemanticity": _monosemanticity,
    "classes": _for_each(_classes),
    "positions": _for_each(_positions),
    "spectra": _spectra,
}
"""Kinds of figures in the order of a report."""
