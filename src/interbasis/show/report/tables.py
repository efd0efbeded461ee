"""Tables of a report: the numbers of runs side by side, with their uncertainty."""

from collections.abc import Iterable, Sequence

from interbasis.graph.settings import BuildConfig
from interbasis.show.declared_tables import DeclaredTables
from interbasis.show.report.measurements import area_with_interval
from interbasis.show.report.record import ReportedRun
from interbasis.show.tables import MISSING, ResultTable

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
        (name, run.name if len(runs) > 1 else None, row, run.nodes_required[name])
        for name in _union(run.layers for run in runs)
        for run in runs
        if (row := run.summary.layers.get(name))
    ]
    return TABLES("report_layers", _named_once(rows))


def section_table(runs: Sequence[ReportedRun]) -> ResultTable | None:
    """Edges, how many carry most, how many are required, and areas with intervals; None without edges."""
    rows: list[tuple[object, ...]] = []
    several = len(runs) > 1
    for name in _union(run.sections for run in runs):
        for run in runs:
            if section := run.sections.get(name):
                summary = run.summary.sections[section.source]
                error = summary.median_relative_error
                error_text = "exact" if error is None else f"{error:.1%}"
                area = area_with_interval(section.curve) if section.curve else None
                values = summary, error_text, section.edges_required, area
                rows.append((name, run.name if several else None, *values))
    for run in runs:
        if run.graph.edges and run.record.curves:
            area = area_with_interval(run.record.curves.curves.whole)
            rows.append(("all at once", run.name if several else None, None, None, None, area))
    return TABLES("report_sections", _named_once(rows)) if rows else None


def _named_once(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Rows whose name stands in the first of several alone."""
    return [("" if k and rows[k - 1][0] == row[0] else row[0], *row[1:]) for k, row in enumerate(rows)]


def module_table(runs: Sequence[ReportedRun]) -> ResultTable | None:
    """Modularity against chance; None where no run has modules."""
    rows = [(run.name, run.record.modules) for run in runs if run.record.modules]
    return TABLES("report_modules", rows) if rows else None


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
