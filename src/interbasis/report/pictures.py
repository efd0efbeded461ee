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
    """Bases side by side, a seed for every model; runs by name where a basis occurs twice for a model."""
    for number, group in enumerate(_alike([run for run in runs if run.ablation], "required")):
        models = list(dict.fromkeys(run.graph.provenance.model_fingerprint for run in group))
        keys = [(run.summary["basis"], run.graph.provenance.model_fingerprint) for run in group]
        by_basis = len(set(keys)) == len(keys)
        rule = _rule(group)
        layers = [layer.name for layer in group[0].graph.layers]
        for what, places in (("edges", group[0].sections), ("nodes", layers)):
            counts: dict[str, list[list[int | None]]] = {}
            for run in group:
                found = (run.ablation or {}).get(f"{what}_required") or []
                if not found:
                    continue
                name = run.summary["basis"] if by_basis else run.name
                seeds = len(models) if by_basis else 1
                rows = counts.setdefault(name, [[None] * len(places) for _ in range(seeds)])
                seed = models.index(run.graph.provenance.model_fingerprint) if by_basis else 0
                rows[seed] = [*found, *[None] * (len(places) - len(found))][: len(places)]
            if counts:
                used = max(len([c for c in row if c is not None]) for rows in counts.values() for row in rows)
                shown = places if used == len(places) else places[:used]
                cut = {name: [row[: len(shown)] for row in rows] for name, rows in counts.items()}
                figure = figures.required(cut, shown, what, rule)
                yield f"{what}-required-{number}", f"{what.capitalize()} required", figure


def _rule(group: Sequence[Facts]) -> str:
    found = group[0].ablation or {}
    return (
        f"Required: the largest that keep {found['metric'].replace('_', '-')} within {found['tolerance']:g} of "
        "the untouched model's, one place at a time."
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
            for feature in layer["features"]
            if (feature.get("fourier") or {}).get("terms")
        ]
        for run in runs
    }
    known = {name: values for name, values in shares.items() if values}
    if known:
        title = "Features of all layers that were looked at."
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
            best = [max(range(len(c["auroc"])), key=lambda k: abs(c["auroc"][k] - 0.5)) for c in known]  # noqa: B023
            bars[layer["name"]] = {run.name: [c["auroc"][k] for c, k in zip(known, best, strict=True)]}
            names[layer["name"]] = [c["names"][k] for c, k in zip(known, best, strict=True)]
    if bars:
        figure = figures.auroc_bars(bars, "the class below the bar, each feature's best", names=names)
        yield f"auroc-{number}", f"Classes that single features of {run.name} tell from the others", figure


def _positions(run: Facts, number: int) -> Iterator[Picture]:
    for layer in (run.features or {}).get("layers", []):
        known = [feature for feature in layer["features"] if feature.get("positions")][:8]
        if known:
            title = f"First features of {run.name} by position, {layer['name']}"
            yield f"positions-{number}", title, figures.position_profiles(known, layer["name"])
            return
