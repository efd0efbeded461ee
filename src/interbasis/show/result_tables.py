"""Results as tables and lines for a terminal: one function per kind of result."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from interbasis.analysis.ablation.records import Control, EdgesRequired
from interbasis.analysis.compare import Comparison
from interbasis.analysis.edge_experts import EdgeExperts
from interbasis.analysis.features.records import LayerFeatures, Push
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.controls import ControlsResult
from interbasis.analysis.stages.curves import CurvesResult
from interbasis.analysis.stages.features import FeaturesResult
from interbasis.analysis.stages.intervene import InterventionResult
from interbasis.analysis.stages.modules import MIN_MODULARITY_Z, ModulesResult
from interbasis.analysis.stages.steer import SteerResult
from interbasis.analysis.stages.trace import TraceResult
from interbasis.analysis.summary import RunSummary
from interbasis.analysis.traces.records import Trace
from interbasis.base.memory import format_bytes
from interbasis.graph.costs import BuildPlan
from interbasis.graph.interaction_graph import Carrier, LargestDirection
from interbasis.models.hf.families_table import FamiliesTable, Way
from interbasis.network.summary import NetworkSummary
from interbasis.show.declared_tables import DeclaredTables
from interbasis.show.precision import duration, precision_sentence
from interbasis.show.sentences import read_texts
from interbasis.show.tables import MISSING, Parts, ResultTable, result_tables

if TYPE_CHECKING:
    from interbasis.compute.shards import RoundMerged, ShardJobs, ShardWritten
    from interbasis.dictionaries.scores import FolderScores
    from interbasis.dictionaries.settings import TrainingRecord

MAX_WHOLE_TABLE_ROWS = 24
"""Rows up to which the tables of a run's summary are printed whole."""
ROWS_SHOWN = 12
"""Rows shown of a longer table."""
MAX_STEPS_AFTER = 3
"""Steps after the last node layer up to which all of them are listed."""
OUTPUTS_SHOWN = 3
"""Outputs shown that a feature pushes up, and as many that it pushes down."""
NODES_SHOWN = 20
"""Nodes of a trace shown, those with the largest effects."""

TEXTS: dict[str, str] = read_texts("result_texts.toml")
"""Notes below other tables, and lines between them."""
TABLES = DeclaredTables("result_tables.toml")


@result_tables.register
def edge_expert_tables(result: EdgeExperts) -> Parts:
    """Shares of an edge by expert."""
    title = f"{result.source} → {result.target}: Ê = {result.rms:.4g} over {result.tokens:,} tokens"
    rows = [(f"expert {row.expert}", row.tokens, f"{row.share:.1%}") for row in result.experts]
    rows.append(("past the experts", result.tokens, f"{result.skip:.1%}"))
    return [ResultTable.from_cells(title, ("", "tokens", "share of Ê²"), rows, TEXTS["edge_experts"])]


@result_tables.register
def summary_tables(summary: RunSummary, folder: str = "", all_rows: bool = False) -> Parts:
    """A run in a few numbers; ``folder`` is where it is saved, if anywhere.

    Of many layers and sections, the first and the last ones are shown, and the layers whose largest
    directions have the largest shares, unless ``all_rows`` are wanted.
    """
    layers, sections = list(summary.layers.values()), list(summary.sections.values())
    count = len(layers) if all_rows or len(layers) <= MAX_WHOLE_TABLE_ROWS else ROWS_SHOWN
    place = f"saved in {folder}" if folder else "in memory"
    basis, model, seconds = summary.basis.upper(), summary.model or summary.family, summary.seconds.values()
    line = TEXTS["run"].format(basis=basis, model=model, summary=summary, seconds=sum(seconds), place=place)
    parts: Parts = [line, TABLES("layers", layers).first_and_last(count)]
    if any(layer.largest_direction for layer in layers):
        parts.append(_direction_table(summary, count))
    if sections:
        parts.append(TABLES("edges", sections).first_and_last(count))
    if summary.too_few_data:
        parts.append(f"{summary.too_few_data[0].upper()}{summary.too_few_data[1:]}.\n")
    if summary.outdated:
        parts.append(TEXTS["outdated"].format(commands=", ".join(summary.outdated)))
    if summary.precision is not None and summary.precision.reached:
        parts.append(precision_sentence(summary.precision, summary.unfinished))
    if count < len(layers):
        command = f"interbasis show {folder} --all" if folder else "run.summary().layers and .sections"
        parts.append(TEXTS["rows_shown"].format(count=count, layers=len(layers), command=command))
    return parts


def _direction_table(summary: RunSummary, count: int) -> ResultTable:
    title = "Largest direction of every layer"
    rows = [(row.name, row.largest_direction) for row in summary.layers.values() if row.largest_direction]
    if len(rows) > count:
        title = f"Largest direction of the {count} layers where its share is largest"
        top = {name for name, _ in sorted(rows, key=lambda row: row[1].share)[-count:]}
        rows = [row for row in rows if row[0] in top]
    carriers = [kind for kind in ("positions", "tokens") if any(getattr(row, kind) for _, row in rows)]
    unit = carriers[-1] if carriers else "samples"

    def shares(kind: str, direction: LargestDirection) -> str:
        texts = summary.token_texts if kind == "tokens" else {}
        listed: tuple[Carrier, ...] = getattr(direction, kind)[:2]
        return ", ".join(f"{texts.get(c.index, c.index)!r} {c.share:.0%}" for c in listed) or MISSING

    cells = []
    for name, row in rows:
        ratio = row.largest_norm / row.median_norm if row.median_norm else None
        cells.append((name, row, ratio, shares("positions", row), shares("tokens", row)))
    parts = [f"the first {summary.skip_positions} positions"] if summary.skip_positions else []
    if summary.norm_limit:
        parts.append(f"{unit} whose norm exceeds {summary.norm_limit:g} times the median of their layer")
    left_out = f"Left out of all sums: {' and '.join(parts)}." if parts else f"All {unit} count in the sums."
    left_out += " The largest direction is a feature of its own." if summary.isolate_largest else ""
    carrying = TEXTS["carriers"].format(kinds=" and ".join(carriers).capitalize()) if carriers else ""
    return TABLES("directions", cells, title=title, unit=unit, carriers=carrying, left_out=left_out)


def section_tables(summary: NetworkSummary, name: str, all_rows: bool = False) -> Parts:
    """The sections of a model: what comes before the first node layer, a row each, what follows the last.

    Of many sections, the first and the last ones are shown, unless ``all_rows`` are wanted.
    """
    head = ("from", "coordinates", "positions", "core", "Jacobians")
    rows = [
        (
            "\n".join(filter(None, [section.source, section.hook])), f"{section.inputs} → {section.outputs}",
            section.grid, section.core, section.cost,
        )
        for section in summary.sections
    ]  # fmt: skip
    count = len(rows) if all_rows or len(rows) <= MAX_WHOLE_TABLE_ROWS else ROWS_SHOWN
    more = f"; {count} of {len(rows)} sections are shown, --all prints all of them" * (count < len(rows))
    after = [f"after the last node layer: {step}" for step in summary.after]
    if len(after) > MAX_STEPS_AFTER and not all_rows:
        after[:-1] = [f"after the last node layer: {len(after) - 1} sections (--all prints them)"]
    return [
        f"{name}: {summary.family}, {len(summary.sections)} sections",
        f"before the first node layer: {summary.before}",
        ResultTable.from_cells("Sections", head, rows, text=head[2:]).first_and_last(count),
        f"to: {summary.sections[-1].target}; every section ends where the next begins{more}",
        *after,
    ]


@result_tables.register
def families_tables(found: FamiliesTable) -> Parts:
    """Model types by how they are taken."""
    ways: tuple[Way, ...] = ("closed form", "general", "refused")
    counts = ", ".join(f"{found.count(way)} {way}" for way in ways)
    return [TABLES("families", found.rows, transformers=found.transformers, counts=counts)]


@result_tables.register
def plan_tables(plan: BuildPlan) -> Parts:
    """What a build takes, for several targets."""
    rows = []
    for name, choice in [*((f"{e:.0%}", c) for e, c in plan.targets.items()), ("exact", plan.exact)]:
        times = duration(3600 * plan.hours(choice)), duration(choice.seconds.processor)
        passes = choice.seconds.processor / (plan.samples * plan.pilot.forward.processor)
        rows.append((name, choice, *times, passes))
    machines = "" if plan.processes == 1 else TEXTS["plan_processes"].format(plan=plan)
    table = TABLES("plan", rows, trial=duration(plan.pilot.seconds.wall), machines=machines)
    sizes = TEXTS["plan_sizes"].format(memory=format_bytes(plan.memory), disk=format_bytes(plan.disk))
    line = TEXTS["plan"].format(plan=plan, tokens=plan.samples * plan.positions)
    return [line, table, sizes]


@result_tables.register
def ablation_tables(result: AblationResult) -> Parts:
    """Edges, robust counts and nodes required, as far as they were measured."""
    metric, sections = result.metric.replace("_", "-"), result.sections.values()
    parts: Parts = [TEXTS["ablation"].format(metric=metric, result=result)]
    if not result.all_tokens:
        parts.append(TEXTS["all_tokens"])
    if sections:
        parts.append(_required_table(sections, metric))
    if robust := [row for row in sections if row.robust]:
        parts.append(TABLES("worst_masks", robust))
    if result.layers:
        layers = result.layers.values()
        nodes = ((row, "more than there are" if row.count is None else str(row.count)) for row in layers)
        parts.append(TABLES("nodes_required", nodes))
    return parts


def _required_table(sections: Iterable[EdgesRequired], metric: str) -> ResultTable:
    """The robust counts, where they were sought, with the plain ones beside them."""
    rows = []
    for row in sections:
        interval = "  [{:,}, {:,}]".format(*row.interval) if row.interval else ""
        stable = row.stable_count if row.stable_count in (None, row.count) else f"{row.stable_count:,}  ≠"
        rows.append((row, f"{row.count:,}{interval}", row.epsilon if row.count else None, stable))
    plain = "" if any(row.robust for row in sections) else TEXTS["plain"]
    return TABLES("edges_required", rows, metric=metric, plain=plain)


@result_tables.register
def curve_tables(result: CurvesResult) -> Parts:
    """The metric at each fraction of the edges, and how sparse the edges are."""
    curves, metric = result.curves, result.curves.metric.replace("_", "-")
    names = {source: f"{source} → {row.target}" for source, row in result.sparsity.items()}
    named = {names[source]: curve for source, curve in curves.sections.items()}
    rows = [
        (name, *(f"{value:.3f}" for value in curve.values), _decimals(curve.area), _decimals(curve.distance))
        for name, curve in (named | {"all sections": curves.whole}).items()
    ]
    rows += [
        (f"worst mask, {names[source]}", *(f"{value:.3f}" for value in worst), "", "")
        for source, worst in result.worst.items()
    ]
    tokens = "" if curves.all_tokens else TEXTS["unmasked_tokens"]
    worst_note = TEXTS["worst_mask"] if result.worst else ""
    note = TEXTS["curves"].format(metric=metric, curves=curves, tokens=tokens, worst=worst_note)
    head = ("section", *(f"{100 * fraction:g} %" for fraction in curves.fractions), "area", "distance")
    table = ResultTable.from_cells(f"{metric} with the largest edges kept", head, rows, note)
    measured = [(names[source], row) for source, row in result.sparsity.items()]
    title = "Sparsity without a threshold"
    return ["", table, TABLES("sparsity", measured, title=title, first="section")]


@result_tables.register
def control_tables(result: ControlsResult) -> Parts:
    """Areas of every control, parts of ablations, and sparsity section by section."""
    controls = list(result.rows.values())
    sections = list(controls[0].curves.sections)
    areas = []
    for row in controls:
        curves = [*(row.curves.sections[name] for name in sections), row.curves.whole]
        numbers = (map(_decimals, (curve.area, *curve.area_interval)) for curve in curves)
        areas.append((row.name, *("{} ({}–{})".format(*limits) for limits in numbers)))
    head = ("control", *sections, "all at once")
    return [
        "",
        ResultTable.from_cells("Area under the faithfulness curve", head, areas, TEXTS["areas"]),
        _stress_table(controls),
        *(
            TABLES(
                "sparsity", [(row.name, row.sparsity[name]) for row in controls if row.sparsity],
                title=f"Sparsity without a threshold, from {name}", first="control",
            )
            for name in sections
        ),
    ]  # fmt: skip


def _stress_table(controls: Iterable[Control]) -> ResultTable:
    rows = []
    for row in controls:
        for name, stress in row.stress.items():
            halves = stress.halves or (stress.all_ablated,)
            rows.append((f"{row.name}: {name}", row.required[name].count, stress, min(halves), max(halves)))
    return TABLES("subsets", rows)


@result_tables.register
def module_tables(result: ModulesResult) -> Parts:
    """The partition, its tests, and where the modules lie."""
    lines: Parts = [TEXTS["modules"].format(result=result, sizes=joined_words(result.sizes))]
    if result.agreement_over_seeds is not None:
        lines.append(TEXTS["agreement"].format(result=result))
    if null := result.null:
        beyond = abs(null.z) >= MIN_MODULARITY_Z
        verdict = f"{null.z:+.1f} standard deviations away" if beyond else "no more modular than chance"
        lines.append(TEXTS["rewired"].format(null=null, verdict=verdict))
    if check := result.leidenalg:
        lines.append(TEXTS["leidenalg"].format(check=check))
    if not result.epsilons_from_ablation:
        lines.append(TEXTS["no_ablation"])
    modules = range(result.modules)
    rows = [
        (name, *(str(assignment.count(module)) for module in (*modules, -1)))
        for name, assignment in result.layers.items()
    ]
    head = ("layer", *map(str, modules), "in none")
    lines += ["", ResultTable.from_cells("Features per layer and module", head, rows)]
    if result.cuts:
        cuts = [("{} and {}".format(*cut.modules), str(len(cut.features))) for cut in result.cuts]
        lines.append(ResultTable.from_cells("Vertex cuts", ("modules", "features"), cuts, TEXTS["cuts"]))
    return lines


@result_tables.register
def feature_tables(result: FeaturesResult) -> Parts:
    """The first features of every layer, and those that nothing uses."""
    idle = [TEXTS["idle"].format(row=row) for row in result.idle if row.count]
    return [*map(_feature_table, result.layers.values()), *idle]


@result_tables.register
def layer_feature_tables(layer: LayerFeatures) -> Parts:
    """The first features of one layer."""
    return [_feature_table(layer)]


def _feature_table(layer: LayerFeatures) -> ResultTable:
    whole = len(layer.features) <= MAX_WHOLE_TABLE_ROWS
    features = layer.features if whole else layer.features[:ROWS_SHOWN]
    pushing = any(feature.effects for feature in features)  # on outputs, where they were computed
    names = ("what it is", "pushes up", "pushes down") if pushing else ("what it is",)
    rows = []
    for feature in features:
        effects = feature.effects
        pushed = [_outputs(effects.up), _outputs(effects.down)] if effects else ["", ""]
        rows.append((str(feature.index), feature.label, *(pushed if pushing else ())))
    notes = [TEXTS["monosemantic"].format(counts=layer.monosemantic)] if layer.monosemantic else []
    if not whole:
        notes.append(TEXTS["more_features"].format(shown=ROWS_SHOWN, described=len(layer.features)))
    return ResultTable.from_cells(layer.name, ("feature", *names), rows, "\n".join(notes), text=names)


def _outputs(pushes: tuple[Push, ...]) -> str:
    return ", ".join(repr(push.name)[1:-1] for push in pushes[:OUTPUTS_SHOWN])


@result_tables.register
def trace_tables(result: TraceResult) -> Parts:
    """The first line, scores, and the nodes with most influence beside what was measured."""
    trace, scores = result.trace, result.trace.scores
    whole = TEXTS["whole_tokens"].format(scores=scores) if scores.whole_share else ""
    counts = {"nodes": len(trace.nodes), "edges": len(trace.edges)}
    return [trace.summary, TEXTS["scores"].format(scores=scores, whole=whole, **counts), _node_table(trace)]


def _node_table(trace: Trace) -> ResultTable:
    texts = {token.position: token.text for token in trace.tokens}
    checks = {check.node: check for check in (trace.checks.nodes if trace.checks else ())}
    rows = []
    for node in sorted(trace.nodes, key=lambda node: -abs(node.effect))[:NODES_SHOWN]:
        check = checks.get(node.name)
        changes = (f"{check.predicted:+.3g}", f"{check.measured:+.3g}") if check else ("", "")
        rows.append((node, repr(texts[node.position])[1:-1], *changes))
    place = "token" if any(token.token is not None for token in trace.tokens) else "position"
    return TABLES("trace", rows, place=place)


@result_tables.register
def steer_tables(result: SteerResult) -> Parts:
    """The outputs that change most, then both continuations, or tests of the label."""
    rows = [(repr(output.name)[1:-1], output) for output in result.outputs]
    over = f", mean of {result.prompt}" if result.samples else ""
    name = "next" if result.predicts_next else "output"
    parts: Parts = [TABLES("steered_outputs", rows, result=result, over=over, name=name)]
    if result.samples:
        parts += [_label_tests(result)] if result.tests else ["", TEXTS["untestable"]]
    if result.continuation is not None and result.steered is not None:
        parts += [f"without: {result.prompt}|{result.continuation}", ""]
        parts += [f"with:    {result.prompt}|{result.steered}"]
    return parts


@result_tables.register
def intervention_tables(result: InterventionResult) -> Parts:
    """Accuracy and loss before and after."""
    interval = "{:+.4f} to {:+.4f}".format(*result.loss_interval) if result.loss_interval else ""
    (right, still_right), (loss, later_loss) = result.accuracy, result.loss
    rows = [
        ("accuracy", f"{right:.2%}", f"{still_right:.2%}", f"{still_right - right:+.2%}", ""),
        ("cross-entropy", f"{loss:.4f}", f"{later_loss:.4f}", f"{later_loss - loss:+.4f}", interval),
    ]
    title = f"{result.layer}:{result.feature} set to {result.target}  {result.label}"
    head = (f"{result.data.samples:,} inputs", "before", "after", "change", "95 % interval")
    return [ResultTable.from_cells(title, head, rows, text=head[:1])]


def _label_tests(result: SteerResult) -> ResultTable:
    rows = [
        (
            test, ", ".join(repr(name)[1:-1] for name in test.raised),
            ", ".join(repr(name)[1:-1] for name in test.lowered), max(test.random),
            "yes" if test.holds else "no",
        )
        for test in result.tests
    ]  # fmt: skip
    return TABLES("label_tests", rows, directions=len(result.tests[0].random))


OVERLAPS = {
    "correlation": "the size of their correlation over the data",
    "directions": "the cosine of their directions in the metrics of both runs, since the weights differ",
    "measured correlation": "the size of their correlation, both models on the same data",
}
"""Words for what features of two runs were matched by."""


@result_tables.register
def comparison_tables(result: Comparison) -> Parts:
    """Features, edges, ablations and modules of two runs side by side."""
    a, b = result.runs
    same = "built on the same data" if result.same_data else "built on different data"
    changed = ", ".join(f"{name} {x} / {y}" for name, (x, y) in result.different_settings.items())
    names = [run.summary.model or run.summary.family for run in (a, b)]
    models = names[0] if result.same_model else f"{names[0]} / {names[1]}, whose weights differ"
    parts: Parts = [
        TEXTS["compared"].format(a=a, b=b, models=models, data=same, changed=changed or "the same settings"),
        TABLES("compared_layers", result.layers.values(), measure=OVERLAPS[result.matched_by]),
        TABLES("compared_edges", result.sections.values()),
    ]
    if result.not_compared:
        parts.append(result.not_compared.capitalize() + ".")
    if a.baseline is not None or b.baseline is not None:
        values = [
            "not ablated" if run.metric is None else f"{run.metric.replace('_', '-')} {run.baseline:.4g}"
            for run in (a, b)
        ]
        parts.append(f"Without ablation: {' / '.join(values)}")
    if a.modules is not None or b.modules is not None:
        modules = [
            "not searched for"
            if run.modules is None
            else f"{run.modules} modules, modularity {run.modularity:.3f}"
            for run in (a, b)
        ]
        agreement = result.module_agreement
        tail = "" if agreement is None else f", agreement over matched features {agreement:.2f}"
        parts.append(f"Modules: {' / '.join(modules)}{tail}")
    return parts


def training_tables(record: "TrainingRecord", folder: str) -> Parts:
    """End of the training of dictionaries, layer by layer."""
    settings = record.settings
    return [
        f"\n{settings.features:,} features, {settings.active} active ({settings.kind}) · metric "
        f"{settings.metric} · {settings.steps:,} steps of {settings.batch:,} tokens · saved in {folder}\n",
        TABLES("trained", [(*layer, settings.features) for layer in record.layers.items()]),
    ]


def score_tables(result: "FolderScores") -> Parts:
    """Scores of dictionaries."""
    return [TABLES("scores", result.scores.items())]


def shard_lines(written: "ShardWritten") -> list[str]:
    """One line on the shard that a job has written."""
    return [TEXTS["shard"].format(written=written, passes=" and ".join(written.passes))]


def merge_lines(merged: "RoundMerged", run: Path) -> list[str]:
    """One line on the round that is merged and the next one."""
    passes = " and ".join(merged.following)
    return [TEXTS["merged"].format(merged=merged, run=run, following=merged.round + 1, passes=passes)]


def job_list(jobs: "ShardJobs") -> str:
    """The rounds of a build in shards with their commands, as plain text to copy from."""
    lines = [f"{len(jobs.rounds)} rounds of {jobs.shards} jobs; SHARD is 1 to {jobs.shards}"]
    for number, step in enumerate(jobs.rounds, 1):
        lines += [f"round {number}: {' and '.join(step.passes)}", f"  {step.job}", f"  {step.merge}"]
    return "\n".join(lines)


def joined_words(values: Iterable[object]) -> str:
    """Values as a list in running text: "6, 5 and 3"."""
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def _decimals(value: float | None) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:.3f}"


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.1%}"
