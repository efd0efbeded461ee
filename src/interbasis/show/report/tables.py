"""Tables of a report: the numbers of runs side by side, with their uncertainty."""

from collections.abc import Iterable, Mapping, Sequence

from interbasis.graph.settings import BuildConfig
from interbasis.show.declared_tables import DeclaredTables
from interbasis.show.report.measurements import area_with_interval
from interbasis.show.report.record import ReportedRun
from interbasis.show.sentences import read_texts
from interbasis.show.tables import MISSING, Cell, ResultTable

COLUMNS: dict[str, dict[str, str]] = read_texts("report/columns.toml")
"""Columns of the tables of node layers and sections, with their meaning."""
TABLES = DeclaredTables("result_tables.toml")
SETTINGS_SHOWN = {"basis", "edge_method", "edge_group", "edge_sources", "edge_positions"}
"""Settings that have a row of their own in the table of provenance."""


def provenance(runs: Sequence[ReportedRun]) -> ResultTable:
    """Model, data, settings, versions, times."""
    columns = [
        {
            "folder": run.folder,
            "model": " · ".join(dict.fromkeys(filter(None, [run.model, run.graph.provenance.model]))),
            "weights (SHA-256)": run.graph.provenance.model_fingerprint[:16],
            "basis": run.summary.basis,
            "built on": _data(run),
            "data (SHA-256)": run.graph.provenance.data_fingerprints.get("data", MISSING)[:16],
            "edges": _edges(run),
            "other settings": _settings(run),
            "evaluated on": _evaluated(run),
            "seconds": ", ".join(f"{phase} {t:.1f}" for phase, t in run.summary.seconds.items() if t >= 0.05)
            or "less than 0.1 each",
            "versions": ", ".join(f"{name} {version}" for name, version in run.summary.versions.items()),
        }
        for run in runs
    ]
    names = [run.name for run in runs]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return ResultTable.from_cells("", ["", *names], rows, text=names)


def _data(run: ReportedRun) -> str:
    request = run.graph.provenance.request
    counts = run.summary.samples
    text = f"{counts['data']:,} samples"
    for kind, words in (("jacobian_data", "Jacobians"), ("edge_data", "edges")):
        if counts.get(kind, counts["data"]) != counts["data"]:
            text += f", {words} on {counts[kind]:,}"
    return f"{request.data}: {text}" if request and request.data else text


def _edges(run: ReportedRun) -> str:
    if not run.graph.edges:
        return "none"
    config = run.graph.config
    sources = "exact over the data"
    if config.edge_group is not None:
        sources = f"estimated, groups of {config.edge_group}, {config.edge_sources} sources"
    if config.edge_positions is not None:
        sources += f", {config.edge_positions} positions of a sequence"
    return f"{config.edge_method}, {sources}"


def _settings(run: ReportedRun) -> str:
    settings, usual = run.graph.config.model_dump(), BuildConfig.validated().model_dump()
    changed = [f"{k}={v}" for k, v in settings.items() if k not in SETTINGS_SHOWN and v != usual[k]]
    return ", ".join(changed) or "defaults"


def _evaluated(run: ReportedRun) -> str:
    result = run.record.ablation or run.record.curves
    if result is None:
        return "not evaluated"
    name = f"{result.data.spec}: " if result.data.spec else ""
    return f"{name}{result.data.samples:,} samples"


def layer_table(runs: Sequence[ReportedRun]) -> ResultTable:
    """Features kept, effective, and required: the runs below each other in every layer."""
    rows = [
        (
            name, run.name, f"{row.features:,} of {row.width:,}", f"{row.effective_features:.1f}",
            row.last_kept_over_floor, run.nodes_required[name],
        )
        for name in _union(run.layers for run in runs)
        for run in runs
        if (row := run.summary.layers.get(name))
    ]  # fmt: skip
    return _measured_columns("Node layers", "layer", COLUMNS["layers"], rows, len(runs))


def section_table(runs: Sequence[ReportedRun]) -> ResultTable | None:
    """Edges, how many carry most, how many are required, and areas with intervals; None without edges."""
    rows: list[Sequence[Cell]] = []
    for name in _union(run.sections for run in runs):
        for run in runs:
            if section := run.sections.get(name):
                summary, ablated = run.summary.sections[section.source], section.edges_required
                error = summary.median_relative_error
                rows.append((
                    name, run.name, summary.edges, summary.edges_for_90_percent,
                    "exact" if error is None else f"{error:.1%}",
                    None if summary.changed_choices is None else f"{summary.changed_choices:.1%}",
                    ablated.robust.count if ablated and ablated.robust else None,
                    ablated.count if ablated else None,
                    f"{ablated.value:.5g}" if ablated else None,
                    area_with_interval(section.curve) if section.curve else None,
                ))  # fmt: skip
    rows += [
        ("all at once", run.name, *[None] * 7, area_with_interval(run.record.curves.curves.whole))
        for run in runs
        if run.graph.edges and run.record.curves
    ]
    columns = COLUMNS["sections"]
    return _measured_columns("Interactions Ê", "section", columns, rows, len(runs)) if rows else None


def _measured_columns(
    title: str, first: str, columns: Mapping[str, str], rows: Sequence[Sequence[Cell]], runs: int
) -> ResultTable:
    """A table without columns in which nothing was measured, and without the run's where there is one run.

    A name stands in the first of its rows only.
    """
    shown = [
        (k, name)
        for k, name in enumerate(columns, start=1)
        if (runs > 1 if name == "run" else any(row[k] is not None for row in rows))
    ]
    cells = [
        ("" if number and rows[number - 1][0] == row[0] else row[0], *(row[k] for k, _ in shown))
        for number, row in enumerate(rows)
    ]
    note = " ".join(filter(None, (columns[name] for _, name in shown)))
    return ResultTable.from_cells(title, (first, *(name for _, name in shown)), cells, note)


def module_table(runs: Sequence[ReportedRun]) -> ResultTable | None:
    """Modularity against chance; None where no run has modules."""
    rows: list[Sequence[Cell]] = []
    for run in runs:
        if result := run.record.modules:
            null, agreement = result.null, result.agreement_over_seeds
            rows.append((
                run.name, str(result.modules), f"{result.resolution:g}", f"{result.modularity:.4f}",
                f"{null.mean:.4f} ± {null.deviation:.4f}" if null else None,
                f"{null.z:.1f}" if null else None, None if agreement is None else f"{agreement:.3f}",
            ))  # fmt: skip
    head = ("run", "modules", "resolution", "modularity", "rewired graphs", "z", "agreement over seeds")
    note = (
        "Rewired graphs have the same degrees (mean ± standard deviation); z below 2 is chance. "
        "Agreement: 1 is the same partition, 0 chance."
    )
    return ResultTable.from_cells("Modules", head, rows, note) if rows else None


def control_table(run: ReportedRun) -> ResultTable | None:
    """Areas of whatever else might look as sparse; None without controls."""
    if not run.record.controls:
        return None
    sources = [section.source for section in run.sections.values()]
    rows = [
        (row.name, *map(area_with_interval, [*(row.curves.sections[k] for k in sources), row.curves.whole]))
        for row in run.record.controls.rows.values()
    ]
    note = "Area under the faithfulness curve with 95 % bootstrap intervals."
    return ResultTable.from_cells(
        f"Controls of {run.name}", ("control", *run.sections, "all at once"), rows, note
    )


def monosemantic_table(runs: Sequence[ReportedRun]) -> ResultTable | None:
    """Counts of features that are mostly one Fourier term; None where none were counted."""
    rows = [(run.name, layer) for run in runs for layer in run.analysed_layers if layer.monosemantic]
    return TABLES("one_term", rows) if rows else None


def _union(names: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for group in names for name in group))
