"""The numbers of runs side by side, with their uncertainty."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from interbasis.analysis.stages.modules import ModulesResult
from interbasis.graph.settings import BuildConfig
from interbasis.show.report.html import heading, paragraph, table
from interbasis.show.report.measurements import area_with_interval
from interbasis.show.report.record import ReportedRun

NOT_MEASURED = "–"


def what_was_run(runs: Sequence[ReportedRun]) -> str:
    """Model, data, settings, versions, times."""
    rows: list[tuple[str, Callable[[ReportedRun], str]]] = [
        ("folder", lambda run: run.folder),
        ("model", lambda run: run.model),
        ("weights (SHA-256)", lambda run: run.graph.provenance.model_fingerprint[:16]),
        ("basis", lambda run: run.summary.basis),
        ("built on", _data),
        ("data (SHA-256)", lambda run: run.graph.provenance.data_fingerprints.get("data", NOT_MEASURED)[:16]),
        ("edges", _edges),
        ("other settings", _settings),
        ("evaluated on", _evaluated),
        ("seconds", _seconds),
        ("versions", lambda run: ", ".join(f"{k} {v}" for k, v in run.summary.versions.items())),
    ]  # fmt: skip
    cells = [[name, *map(cell, runs)] for name, cell in rows]
    return table(["", *(run.name for run in runs)], cells, kind="words")


def _seconds(run: ReportedRun) -> str:
    shown = ", ".join(f"{phase} {t:.1f}" for phase, t in run.summary.seconds.items() if t >= 0.05)
    return shown or "less than 0.1 each"


def _data(run: ReportedRun) -> str:
    request = run.graph.provenance.request
    spec = request and request.data
    counts = run.summary.samples
    parts = f"{counts['data']:,} samples"
    for kind, words in (("jacobian_data", "Jacobians"), ("edge_data", "edges")):
        if counts.get(kind, counts["data"]) != counts["data"]:
            parts += f", {words} on {counts[kind]:,}"
    return f"{spec}: {parts}" if spec else parts


def _edges(run: ReportedRun) -> str:
    if not run.graph.edges:
        return "none"
    config = run.graph.config
    group = config.edge_group
    sources = (
        "exact over the data"
        if group is None
        else f"estimated, groups of {group}, {config.edge_sources} sources"
    )
    if config.edge_positions is not None:
        sources += f", {config.edge_positions} positions of a sequence"
    return f"{config.edge_method}, {sources}"  # fmt: skip


def _settings(run: ReportedRun) -> str:
    shown = {"basis", "edge_method", "edge_group", "edge_sources", "edge_positions"}
    given, usual = run.graph.config.model_dump(), BuildConfig.validated().model_dump()
    changed = [f"{k}={v}" for k, v in given.items() if k not in shown and v != usual[k]]
    return ", ".join(changed) or "defaults"


def _evaluated(run: ReportedRun) -> str:
    result = run.record.ablation or run.record.curves
    if result is None:
        return "not evaluated"
    name = f"{result.data.spec}: " if result.data.spec else ""
    return f"{name}{result.data.samples:,} samples"


LAYER_COLUMNS = {
    "run": "",
    "features": "Features: how many are kept, of the layer's width; both count the constant.",
    "effective": "Effective: participation ratio of what ranks them.",
    "margin": "Margin: the last value kept, divided by its noise floor.",
    "required": "Required: nodes that keep the metric within its tolerance.",
}
"""What the columns of node layers mean."""


def node_layers(runs: Sequence[ReportedRun]) -> str:
    """Features kept, effective, and required: the runs below each other in every layer."""
    names = _union(run.layers for run in runs)
    rows = [[name, *_layer(run, name)] for name in names for run in runs if name in run.layers]
    return _measured_columns("layer", LAYER_COLUMNS, rows, len(runs))


def _layer(run: ReportedRun, name: str) -> list[str]:
    summary, required = run.summary.layers[name], run.nodes_required[name]
    margin = summary.last_kept_over_floor
    return [
        run.name,
        f"{summary.features:,} of {summary.width:,}",
        f"{summary.effective_features:.1f}",
        NOT_MEASURED if margin is None else f"{margin:.3g}",
        NOT_MEASURED if required is None else f"{required:,}",
    ]


SECTION_COLUMNS = {
    "run": "",
    "edges": "Edges: between the features kept, without the constant's.",
    "90 % of Ê²": "90 % of Ê²: how many of the largest edges carry that share.",
    "error of Ê": "Error: median relative standard error; exact: no stochastic sources.",
    "required": "Required: largest edges that keep the metric within its tolerance, one section at a time.",
    "robust": "Robust: enough that no mask found within the rest costs more than the tolerance.",
    "metric": "Metric: with only the edges required kept.",
    "area": "Area: under the faithfulness curve, 1 if few edges do it all; in brackets the 95 % bootstrap "
    "interval over samples.",
}
"""What the columns of sections mean."""


def sections(runs: Sequence[ReportedRun]) -> str:
    """Edges, how many carry most, how many are required, and areas with intervals."""
    with_edges = [run for run in runs if run.graph.edges]
    if not with_edges:
        return paragraph("The runs were built without edges.")
    names = _union(run.sections for run in with_edges)
    rows = [[name, *_section(run, name)] for name in names for run in with_edges if name in run.sections]
    for run in with_edges:
        if run.record.curves:
            area = area_with_interval(run.record.curves.curves.whole)
            rows.append(["all at once", run.name, *[NOT_MEASURED] * 6, area])
    return _measured_columns("section", SECTION_COLUMNS, rows, len(runs))


def _measured_columns(first: str, columns: Mapping[str, str], rows: list[list[str]], runs: int) -> str:
    """A table without columns in which nothing was measured, and without the run's where there is one run."""
    shown = [
        k
        for k, name in enumerate(columns, start=1)
        if (runs > 1 if name == "run" else any(row[k] != NOT_MEASURED for row in rows))
    ]
    names = list(columns)
    cells = [[row[0], *(row[k] for k in shown)] for row in _without_repeats(rows)]
    caption = " ".join(words for k in shown if (words := columns[names[k - 1]]))
    return table([first, *(names[k - 1] for k in shown)], cells, caption)


def _section(run: ReportedRun, name: str) -> list[str]:
    section = run.sections[name]
    summary, ablated = run.summary.sections[section.source], section.edges_required
    error = summary.median_relative_error
    return [
        run.name,
        f"{summary.edges:,}",
        f"{summary.edges_for_90_percent:,}",
        "exact" if error is None else f"{error:.1%}",
        f"{ablated.count:,}" if ablated else NOT_MEASURED,
        f"{ablated.robust.count:,}" if ablated and ablated.robust else NOT_MEASURED,
        f"{ablated.value:.5g}" if ablated else NOT_MEASURED,
        area_with_interval(section.curve) if section.curve else NOT_MEASURED,
    ]


def _without_repeats(rows: list[list[str]]) -> list[list[str]]:
    """A name stands in the first of its rows only."""
    names = ["", *(row[0] for row in rows)]
    return [["" if row[0] == before else row[0], *row[1:]] for row, before in zip(rows, names, strict=False)]


def modules(runs: Sequence[ReportedRun]) -> str:
    """Modularity against chance."""
    rows = [[run.name, *_module_cells(run.record.modules)] for run in runs if run.record.modules]
    if not rows:
        return ""
    head = ["run", "modules", "resolution", "modularity", "rewired graphs", "z", "agreement over seeds"]
    return heading(3, "Modules") + table(
        head, rows,
        caption="Rewired graphs have the same degrees (mean ± standard deviation); z below 2 is chance. "
        "Agreement: 1 is the same partition, 0 chance.",
    )  # fmt: skip


def _module_cells(result: ModulesResult) -> list[str]:
    null, agreement = result.null, result.agreement_over_seeds
    return [
        str(result.modules),
        f"{result.resolution:g}",
        f"{result.modularity:.4f}",
        f"{null.mean:.4f} ± {null.deviation:.4f}" if null else NOT_MEASURED,
        f"{null.z:.1f}" if null else NOT_MEASURED,
        NOT_MEASURED if agreement is None else f"{agreement:.3f}",
    ]


def controls(runs: Sequence[ReportedRun]) -> str:
    """What else would look as sparse."""
    parts = []
    for run in runs:
        if run.record.controls:
            sources = {name: section.source for name, section in run.sections.items()}
            rows = [
                [
                    row.name,
                    *(area_with_interval(row.curves.sections[source]) for source in sources.values()),
                    area_with_interval(row.curves.whole),
                ]
                for row in run.record.controls.rows.values()
            ]
            parts += [
                heading(3, f"Controls of {run.name}"),
                table(
                    ["control", *sources, "all at once"], rows,
                    caption="Area under the faithfulness curve with 95 % bootstrap intervals.",
                ),
            ]  # fmt: skip
    return "".join(parts)


def monosemantic(runs: Sequence[ReportedRun]) -> str:
    """How many features are mostly one Fourier term."""
    rows = [
        [f"{run.name}, {layer.name}", f"{counts.without_constant} of {counts.top}", counts.paper]
        for run in runs
        for layer in run.analysed_layers
        if (counts := layer.monosemantic)
    ]
    if not rows:
        return ""
    return heading(3, "Features that are over 90 % one term") + table(
        ["run, layer", "among the first", "the paper's way"],
        rows,
        caption="The paper's way counts the constant among the first ten.",
    )


def _union(many: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in many for name in names))
