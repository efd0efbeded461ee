"""The numbers of runs side by side, with their uncertainty."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from interbasis.graph.settings import BuildConfig
from interbasis.report.facts import Facts
from interbasis.report.html import heading, paragraph, table
from interbasis.report.standards import interval

NOTHING = "–"


def what_was_run(runs: Sequence[Facts]) -> str:
    """Model, data, settings, versions, times."""
    rows: list[tuple[str, Callable[[Facts], str]]] = [
        ("folder", lambda run: run.folder),
        ("model", lambda run: run.model),
        ("weights (SHA-256)", lambda run: run.graph.provenance.model_fingerprint[:16]),
        ("basis", lambda run: run.summary["basis"]),
        ("built on", _data),
        ("data (SHA-256)", lambda run: run.graph.provenance.data_fingerprints.get("data", NOTHING)[:16]),
        ("edges", _edges),
        ("other settings", _settings),
        ("evaluated on", _evaluated),
        ("seconds", _seconds),
        ("versions", lambda run: ", ".join(f"{k} {v}" for k, v in run.summary["versions"].items())),
    ]  # fmt: skip
    cells = [[name, *map(cell, runs)] for name, cell in rows]
    return table(["", *(run.name for run in runs)], cells, kind="words")


def _seconds(run: Facts) -> str:
    shown = ", ".join(f"{phase} {t:.1f}" for phase, t in run.summary["seconds"].items() if t >= 0.05)
    return shown or "less than 0.1 each"


def _data(run: Facts) -> str:
    request = run.graph.provenance.request
    spec = request and request.data
    counts = run.summary["samples"]
    parts = f"{counts['data']:,} samples"
    for kind, words in (("jacobian_data", "Jacobians"), ("edge_data", "edges")):
        if counts.get(kind, counts["data"]) != counts["data"]:
            parts += f", {words} on {counts[kind]:,}"
    return f"{spec}: {parts}" if spec else parts


def _edges(run: Facts) -> str:
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


def _settings(run: Facts) -> str:
    shown = {"basis", "edge_method", "edge_group", "edge_sources", "edge_positions"}
    given, usual = run.graph.config.model_dump(), BuildConfig.of().model_dump()
    changed = [f"{k}={v}" for k, v in given.items() if k not in shown and v != usual[k]]
    return ", ".join(changed) or "defaults"


def _evaluated(run: Facts) -> str:
    data = (run.ablation or run.curves or {}).get("data")
    return f"{data['spec']}: {data['samples']:,} samples" if data else "not evaluated"


def node_layers(runs: Sequence[Facts]) -> str:
    """Features kept, effective, and required: the runs below each other in every layer."""
    names = _union([row["name"] for row in run.summary["layers"]] for run in runs)
    rows = [[name, *_layer(run, name)] for name in names for run in runs if name in _layer_names(run)]
    return table(
        ["layer", "run", "features", "effective", "margin", "required"],
        _without_repeats(rows),
        caption="Features: kept, of the layer's width, the constant among them. Effective: participation "
        "ratio of what ranks them. Margin: how many times the noise floor the last kept one is. Required: "
        "nodes that keep the metric within its tolerance.",
    )


def _layer_names(run: Facts) -> list[str]:
    return [row["name"] for row in run.summary["layers"]]


def _layer(run: Facts, name: str) -> list[str]:
    k = _layer_names(run).index(name)
    row = run.summary["layers"][k]
    margin = row["last_kept_over_floor"]
    return [
        run.name,
        f"{row['features']:,} of {row['width']:,}",
        f"{row['effective_features']:.1f}",
        NOTHING if margin is None else f"{margin:.3g}",
        NOTHING if (required := run.nodes_required[k]) is None else f"{required:,}",
    ]


def sections(runs: Sequence[Facts]) -> str:
    """Edges, how many carry most, how many are required, and areas with intervals."""
    with_edges = [run for run in runs if run.graph.edges]
    if not with_edges:
        return paragraph("The runs were built without edges.")
    names = _union(run.sections for run in with_edges)
    rows = [[name, *_section(run, name)] for name in names for run in with_edges if name in run.sections]
    for run in with_edges:
        if run.curves:
            area = interval(run.curves["whole"], "area")
            rows.append(["all at once", run.name, *[NOTHING] * 5, area])
    return table(
        ["section", "run", "edges", "90 % of Ê²", "error of Ê", "required", "metric then", "area"],
        _without_repeats(rows),
        caption="Edges: between the features kept, without the constant's. 90 % of Ê²: how many of the "
        "largest carry so much. Error: median relative standard error; exact: no stochastic sources. "
        "Required: largest edges that keep the metric within its tolerance, one section at a time. Area: "
        "under the faithfulness curve, 1 if few edges do it all; in brackets the 95 % bootstrap interval "
        "over samples.",
    )


def _section(run: Facts, name: str) -> list[str]:
    k = run.sections.index(name)
    row = run.summary["sections"][k]
    error = row.get("median_relative_error")
    ablated, traced = run.ablated[k], run.traced[k]
    return [
        run.name,
        f"{row['edges']:,}",
        f"{row['edges_for_90_percent']:,}",
        "exact" if error is None else f"{error:.1%}",
        f"{ablated['count']:,}" if ablated else NOTHING,
        f"{ablated['value']:.5g}" if ablated else NOTHING,
        interval(traced, "area") if traced else NOTHING,
    ]


def _without_repeats(rows: list[list[str]]) -> list[list[str]]:
    """A name stands in the first of its rows only."""
    found, before = [], None
    for row in rows:
        found.append([row[0] if row[0] != before else "", *row[1:]])
        before = row[0]
    return found


def modules(runs: Sequence[Facts]) -> str:
    """Modularity against chance."""
    found = [run for run in runs if run.modules]
    if not found:
        return ""
    rows = [[run.name, *_module_cells(run.modules or {})] for run in found]
    head = ["run", "modules", "resolution", "modularity", "rewired graphs", "z", "agreement over seeds"]
    return heading(3, "Modules") + table(
        head, rows,
        caption="Rewired graphs have the same degrees (mean ± standard deviation); z below 2 is chance. "
        "Agreement: 1 is the same partition, 0 chance.",
    )  # fmt: skip


def _module_cells(found: dict[str, Any]) -> list[str]:
    null, agreement = found.get("null"), (found.get("agreement") or {}).get("seeds")
    chance = [f"{null['mean']:.4f} ± {null['deviation']:.4f}", f"{null['z']:.1f}"] if null else [NOTHING] * 2
    return [
        str(found["modules"]), f"{found['resolution']:g}", f"{found['modularity']:.4f}", *chance,
        NOTHING if agreement is None else f"{agreement:.3f}",
    ]  # fmt: skip


def controls(runs: Sequence[Facts]) -> str:
    """What else would look as sparse."""
    parts = []
    for run in runs:
        if run.controls:
            head = ["control", *run.sections, "all at once"]
            rows = [
                [
                    row["name"],
                    *(interval(c, "area") for c in (*row["curves"]["sections"], row["curves"]["whole"])),
                ]
                for row in run.controls["rows"]
            ]
            parts.append(
                heading(3, f"Controls of {run.name}")
                + table(
                    head, rows, caption="Area under the faithfulness curve with 95 % bootstrap intervals."
                )
            )
    return "".join(parts)


def monosemantic(runs: Sequence[Facts]) -> str:
    """How many features are mostly one Fourier term."""
    rows = []
    for run in runs:
        for layer in (run.features or {}).get("layers", []):
            if "monosemantic" not in layer or layer["name"] in run.outputs:
                continue
            counts = layer["monosemantic"]
            among = f"{counts['without_constant']} of {counts['top']}"
            rows.append([f"{run.name}, {layer['name']}", among, counts["paper"]])
    if not rows:
        return ""
    return heading(3, "Features that are over 90 % one term") + table(
        ["run, layer", "among the first", "the paper's way"],
        rows,
        caption="The paper's way counts the constant among the first ten.",
    )


def _union(many: Iterator[list[str]] | Sequence[list[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in many for name in names))
