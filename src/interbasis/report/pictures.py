"""Which figures a report has: those that its runs hold the data for."""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from interbasis import figures
from interbasis.report.facts import Facts

ACROSS = 5
"""Node layers in one picture of a deep network."""
FEATURES = 12
"""Features with bars; of position profiles, as many as fill two rows."""

Picture = tuple[str, str, Figure]
"""Name of the file, title, figure."""


def pictures(runs: Sequence[Facts]) -> Iterator[Picture]:
    """All figures, made one after another."""
    for number, run in enumerate(runs):
        yield from _graphs(run, number)
    yield from _required(runs)
    for number, group in enumerate(_alike(runs, "curves")):
        found = {run.name: run.curves for run in group if run.curves}
        yield f"curves-{number}", "The metric as edges are ablated", figures.ablation_curves(found)
    yield from _monosemanticity(runs)
    for number, run in enumerate(runs):
        yield from _classes(run, number)
        yield from _positions(run, number)
    for number, group in enumerate(_alike(runs, "graph")):
        spectra = figures.eigenvalue_spectra({run.name: run.graph for run in group})
        yield f"spectra-{number}", "Importance of features", spectra


def _graphs(run: Facts, number: int) -> Iterator[Picture]:
    if not run.graph.edges:
        return
    last = len(run.graph.layers) - 1
    starts = range(0, last, ACROSS - 1) if last >= ACROSS else [0]
    for part, start in enumerate(starts):
        end = min(start + ACROSS - 1, last) if last >= ACROSS else last
        where = "" if last < ACROSS else f", {run.graph.layers[start].name} to {run.graph.layers[end].name}"
        groups = [layer["assignment"] for layer in run.modules["layers"]] if run.modules else None
        figure = figures.interaction_graph(
            run.graph, needed=run.masks, labels=run.labels, modules=groups, layers=(start, end)
        )
        yield f"graph-{number}-{part}", f"Interaction graph of {run.name}{where}", figure


def _required(runs: Sequence[Facts]) -> Iterator[Picture]:
    for number, group in enumerate(_alike([run for run in runs if run.ablation], "required")):
        layers = [layer.name for layer in group[0].graph.layers]
        for what, places in (("edges", group[0].sections), ("nodes", layers)):
            found = [run.edges_required if what == "edges" else run.nodes_required for run in group]
            used = [k for k in range(len(places)) if any(row[k] is not None for row in found)]
            if used:
                counts = _counts(group, [[row[k] for k in used] for row in found])
                figure = figures.required(counts, [places[k] for k in used], what, _rule(group))
                yield f"{what}-required-{number}", f"{what.capitalize()} required", figure


def _counts(group: Sequence[Facts], found: list[list[int | None]]) -> dict[str, list[list[int | None]]]:
    """{basis: counts [models][places]}; by the runs' names where a basis occurs twice for a model."""
    models = [run.graph.provenance.model_fingerprint for run in group]
    bases = [run.summary["basis"] for run in group]
    if len(set(zip(bases, models, strict=True))) < len(group):
        return {run.name: [row] for run, row in zip(group, found, strict=True)}
    distinct = list(dict.fromkeys(models))
    counts: dict[str, list[list[int | None]]] = {}
    for basis, model, row in zip(bases, models, found, strict=True):
        rows = counts.setdefault(basis, [[None] * len(row) for _ in distinct])
        rows[distinct.index(model)] = row
    return counts


def _rule(group: Sequence[Facts]) -> str:
    found = group[0].ablation or {}
    return (
        f"Required: the largest that keep {found['metric'].replace('_', '-')} within {found['tolerance']:g} "
        "of the untouched model's, one place at a time."
    )


def _alike(runs: Sequence[Facts], what: str) -> list[list[Facts]]:
    """Runs that fit into one figure: the same layers, and the same metric where one is drawn."""
    groups: dict[tuple[object, ...], list[Facts]] = {}
    for run in runs:
        key: tuple[object, ...] = tuple(layer.name for layer in run.graph.layers)
        if what == "curves":
            if not run.curves:
                continue
            key = (key, run.curves["metric"], len(run.curves["sections"]))
        if what == "required" and run.ablation:
            key = (key, run.ablation["metric"], run.ablation["tolerance"])
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _monosemanticity(runs: Sequence[Facts]) -> Iterator[Picture]:
    shares = {
        run.name: [
            feature["fourier"]["terms"][0]["share"]
            for layer in (run.features or {}).get("layers", [])
            if layer["name"] not in run.outputs
            for feature in layer["features"]
            if (feature.get("fourier") or {}).get("terms")
        ]
        for run in runs
    }
    known = {name: values for name, values in shares.items() if values}
    if known:
        title = "Features of all layers that were looked at, outputs left out."
        yield (
            "monosemanticity",
            "How much of a feature one term explains",
            figures.monosemanticity(known, title),
        )


def _classes(run: Facts, number: int) -> Iterator[Picture]:
    bars: dict[str, dict[str, list[float]]] = {}
    names: dict[str, list[str]] = {}
    for layer in (run.features or {}).get("layers", []):
        known = [f["classes"] for f in layer["features"] if f.get("classes")][:FEATURES]
        if known:
            best = [_most_separated(c["auroc"]) for c in known]
            bars[layer["name"]] = {run.name: [c["auroc"][k] for c, k in zip(known, best, strict=True)]}
            names[layer["name"]] = [c["names"][k] for c, k in zip(known, best, strict=True)]
    if bars:
        figure = figures.auroc_bars(bars, "the class below the bar, each feature's best", names=names)
        yield f"auroc-{number}", f"Classes that single features of {run.name} tell from the others", figure


def _most_separated(areas: Sequence[float]) -> int:
    return max(range(len(areas)), key=lambda k: abs(areas[k] - 0.5))


def _positions(run: Facts, number: int) -> Iterator[Picture]:
    for layer in (run.features or {}).get("layers", []):
        known = [feature for feature in layer["features"] if feature.get("positions")][:8]
        if known:
            title = f"First features of {run.name} by position, {layer['name']}"
            yield f"positions-{number}", title, figures.position_profiles(known, layer["name"])
            return
