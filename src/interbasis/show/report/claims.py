"""Claims, by the evidence standards: which sentences the measurements of a run allow, and which they do not.

Every sentence (`claims.toml`) is made from what was measured. What was not measured forbids what would need
it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from interbasis.analysis.ablation.records import Control
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.modules import MIN_MODULARITY_Z
from interbasis.analysis.stages.steer import SteeredOutput
from interbasis.show.report.measurements import (
    area_with_interval,
    does_something,
    known_interval,
    scrambled_counts,
)
from interbasis.show.report.record import ReportedRun
from interbasis.show.sentences import ClaimTexts, ReportClaim

MIN_SEED_AGREEMENT = 0.9
"""Agreement of partitions over seeds from which single features may be said to belong to a module."""
MAX_LISTED = 24
"""Layers or sections that a sentence lists."""
MAX_STEERS = 8
"""Changes of features that a report lists, those on most inputs."""
OUTPUTS_LISTED = 3
"""Outputs that a sentence on a change lists."""
MIN_SIGN_AGREEMENT = 0.9
"""Share of interventions in the predicted direction from which traces may be said to predict them."""
MIN_TIMES_NOISE_FLOOR = 10.0
"""The last feature kept is clear of the noise floor from so many times the floor on."""
MIN_TOKENS_PER_COORDINATE = 10
"""With fewer, chance correlations mix features: of the features of a planted network, 0.77 lay in one part
with ten tokens per coordinate, and 0.93 with 170 (docs/evidence.md)."""
TEXTS = ClaimTexts("report/claims.toml")
"""The text of every claim and the reasons for it, by name."""
_claim, _yes, _no = TEXTS.claim, TEXTS.yes, TEXTS.no


def claims(run: ReportedRun) -> list[ReportClaim]:
    """Claims that one run allows, and claims that it does not."""
    parts = _graph, _edges, _ablation, _whole, _bases, _modules, _features, _interventions
    return [*(claim for part in parts for claim in part(run)), _no("scope", "one_run")]


def _each(values: Mapping[str, float | None], form: str) -> str:
    """Every layer or section with its value, where it has one; of many, the extremes."""
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) <= MAX_LISTED:
        return ", ".join(f"{name} {value:{form}}" for name, value in known.items())
    low, high = (pick(known.items(), key=lambda item: item[1]) for pick in (min, max))
    return f"from {low[1]:{form}} ({low[0]}) to {high[1]:{form}} ({high[0]})"


def _graph(run: ReportedRun) -> Iterator[ReportClaim]:
    summary, config, layers = run.summary, run.graph.config, run.summary.layers.values()
    features = _each({layer.name: layer.features for layer in layers}, ",")
    basis = summary.basis.upper()
    yield _yes("kept_features", "computed", summary=summary, basis=basis, model=run.model, features=features)
    margins = {layer.name: layer.last_kept_over_floor for layer in layers}
    near = {name: m for name, m in margins.items() if m is not None and m < MIN_TIMES_NOISE_FLOOR}
    if near:
        yield _no("feature_counts", "near_floor", near=_each(near, ".2g"))
    yield from _data(run)
    if config.jacobian_sources or config.jacobian_queries:
        yield _no("exact_basis", "sampled")
    if errors := _each({layer.name: layer.eigenvalue_error for layer in layers}, ".1%"):
        yield _yes("eigenvalue_errors", "halves", errors=errors)


def _data(run: ReportedRun) -> Iterator[ReportClaim]:
    """Claims that layers with few tokens per coordinate do not allow."""
    missing = run.graph.scarce_layers(1)
    few = run.graph.scarce_layers(MIN_TOKENS_PER_COORDINATE)
    if missing:
        yield _no("noise", "too_few", layers=_listed(missing))
    if few.keys() - missing.keys():
        rest = {name: sizes for name, sizes in few.items() if name not in missing}
        yield _no("same_features", "few", limit=MIN_TOKENS_PER_COORDINATE, layers=_listed(rest))


def _listed(sizes: Mapping[str, str]) -> str:
    shown = [f"{name} {size}" for name, size in sizes.items()]
    more = f" and {len(shown) - MAX_LISTED} more layers" if len(shown) > MAX_LISTED else ""
    return ", ".join(shown[:MAX_LISTED]) + more


def _edges(run: ReportedRun) -> Iterator[ReportClaim]:
    if not run.graph.edges:
        yield _no("interactions", "no_edges")
        return
    sections = run.summary.sections.values()
    if errors := _each({section.name: section.median_relative_error for section in sections}, ".1%"):
        yield _yes("edge_errors", "spread", errors=errors)
        yield _no("close_edges", "chance")
    else:
        yield _yes("exact_edges", "sums")
    if run.summary.edge_method == "gradient":
        yield _no("complete_edges", "gradients")
    yield _no("signed_edges", "root_mean_square")


def _ablation(run: ReportedRun) -> Iterator[ReportClaim]:
    ablation = run.record.ablation
    if not ablation or not ablation.sections:
        yield _no("few_edges", "not_ablated")
        return
    sections = ablation.sections.values()
    counts = ", ".join(f"{section.name} {section.count:,}" for section in sections)
    yield from _robust(ablation)
    yield _yes(
        "edges_required",
        "measured",
        ablation=ablation,
        metric=ablation.metric.replace("_", "-"),
        counts=counts,
        spec=f" of {ablation.data.spec}" if ablation.data.spec else "",
        unmasked="" if ablation.all_tokens else " Tokens that the build left out were not masked.",
    )
    stable = {s.name: s.stable_count for s in sections if s.stable_count not in (None, s.count)}
    listed = ", ".join(f"{name} {count:,}" for name, count in stable.items())
    unstable = f"; from these counts on it stays within the tolerance: {listed}" if stable else ""
    yield _no("fewer_edges", "not_monotone", unstable=unstable)
    if missing := [section.name for section in run.sections.values() if section.edges_required is None]:
        yield _no("every_section", "not_ablated", missing=", ".join(missing))
    if ablation.data.fingerprint in run.graph.provenance.data_fingerprints.values():
        yield _no("unseen_data", "same_data")


def _robust(ablation: AblationResult) -> Iterator[ReportClaim]:
    """Claims that the search for bad masks allows; without one, none."""
    measured = {section.name: section.robust for section in ablation.sections.values() if section.robust}
    if not measured:
        yield _no("edges_without_effect", "not_searched")
        return
    counts = ", ".join(f"{name} {row.count:,} (plain {row.plain:,})" for name, row in measured.items())
    level = next(iter(measured.values())).level
    yield _yes("robust_edges", "searched", ablation=ablation, level=level, counts=counts)
    broken = {name: row.worst_at_plain for name, row in measured.items() if row.count > row.plain}
    if broken:
        worst = ", ".join(f"{name} {value:.4g}" for name, value in broken.items())
        yield _no("edges_without_effect", "harmful", ablation=ablation, worst=worst)


def _whole(run: ReportedRun) -> Iterator[ReportClaim]:
    result = run.record.curves
    if not result:
        yield _no("all_sections", "not_measured")
    elif not does_something(result.curves.whole):
        yield _no("all_sections", "nothing_to_carry")
    else:
        area, fractions = area_with_interval(result.curves.whole), len(result.curves.fractions)
        yield _yes("area", "measured", area=area, fractions=fractions)


def _bases(run: ReportedRun) -> Iterator[ReportClaim]:
    basis, result, control = run.summary.basis.upper(), run.record.controls, run.trained_control
    if not result:
        yield _no("sparser_or_learnt", "no_controls", basis=basis)
        return
    if control is None:
        yield _no("sparser", "not_included", basis=basis)
        return
    rows = result.rows.values()
    yield _learnt(control, rows)
    yield from (_compared(control, row) for row in rows if row is not control)
    stress = [section for row in rows for section in row.stress.values()]
    if failed := sum(section.failed for section in stress):
        yield _no("halves", "cancel", failed=failed, tried=sum(section.tried for section in stress))


def _learnt(control: Control, rows: Iterable[Control]) -> ReportClaim:
    """Edges required tell trained networks from scrambled ones better than areas do (docs/evidence.md)."""
    counted = scrambled_counts(rows)
    if not control.required or not counted:
        return _no("learnt", "not_counted")
    needed = sum(section.count for section in control.required.values())
    scrambled = ", ".join(f"{count:,} ({name})" for name, count in counted.items())
    numbers = f"Edges required over all sections: {needed:,}, against {scrambled}, on their own answers."
    fewer = needed < min(counted.values())
    return _claim(fewer, "learnt", "fewer" if fewer else "not_fewer", numbers=numbers)


def _compared(control: Control, other: Control) -> ReportClaim:
    """Areas with all sections ablated at once; apart only where the intervals do not touch."""
    a, b = control.curves.whole, other.curves.whole
    limits, other_limits = known_interval(a), known_interval(b)
    if not (does_something(a) and does_something(b)):
        reason = "nothing"
    elif limits is None or other_limits is None:
        reason = "no_intervals"
    elif limits[0] > other_limits[1]:
        reason = "apart"
    else:
        reason = "reversed" if limits[1] < other_limits[0] else "overlap"
    areas = f"Areas, all sections at once: {area_with_interval(a)} against {area_with_interval(b)}."
    return _claim(reason == "apart", "more_with_few", reason, control=control, other=other, areas=areas)


def _modules(run: ReportedRun) -> Iterator[ReportClaim]:
    modules = run.record.modules
    if not modules:
        yield _no("modules", "not_searched")
        return
    if not (null := modules.null):
        yield _no("modules", "not_compared", modules=modules)
        return
    numbers = f"{null.mean:.3f} ± {null.deviation:.3f} in {null.graphs} rewired graphs, z = {null.z:.1f}"
    if null.z < MIN_MODULARITY_Z:
        yield _no("modules", "chance", modules=modules, null=numbers)
        return
    yield _yes("modular", "rewired", modules=modules, null=numbers)
    agreement = modules.agreement_over_seeds
    if agreement is None or agreement < MIN_SEED_AGREEMENT:
        measured = "was not measured" if agreement is None else f"is {agreement:.2f}"
        yield _no("members", "seeds", agreement=measured, required=MIN_SEED_AGREEMENT)
    yield _no("functional_modules", "no_intervention")


def _features(run: ReportedRun) -> Iterator[ReportClaim]:
    if not (run.record.features or run.record.labels):
        yield _no("meaning", "not_described")
        return
    yield _yes("labels", "computed")
    changed = {f"{steer.layer}:{steer.feature}" for steer in run.record.steers.values()}
    changed |= {f"{result.layer}:{result.feature}" for result in run.record.interventions.values()}
    yield _no("use", "few_changed" if changed else "correlations", features=", ".join(sorted(changed)))


def _interventions(run: ReportedRun) -> Iterator[ReportClaim]:
    """Claims that changes of features allow: those of `steer`, `intervene`, and the checks of traces."""
    steers = sorted(run.record.steers.values(), key=lambda steer: -(steer.samples or 1))
    for steer in steers[:MAX_STEERS]:
        name, count = f"{steer.layer}:{steer.feature}", steer.samples or 1
        yield _yes(
            "steered",
            "intervals" if steer.samples else "one_input",
            place=name, steer=steer, count=f"{count:,} inputs" if count > 1 else "one input",
            changes=", ".join(map(_change, steer.outputs[:OUTPUTS_LISTED])),
        )  # fmt: skip
        for test in steer.tests:
            low, high = test.interval
            yield _claim(
                test.holds, "tested_label", "beyond_random" if test.holds else "as_random",
                place=name, test=test, low=low, high=high, largest=max(test.random), count=len(test.random),
            )  # fmt: skip
    for result in list(run.record.interventions.values())[:MAX_STEERS]:
        changed = [after - before for before, after in (result.accuracy, result.loss)]
        yield _yes(
            "intervened",
            "intervals" if result.loss_interval else "one_input",
            place=f"{result.layer}:{result.feature}", result=result, accuracy=changed[0], loss=changed[1],
            interval=result.loss_interval or (0, 0),
        )  # fmt: skip
    checks = [result.trace.checks for result in run.record.traces.values() if result.trace.checks]
    nodes = [check for traced in checks for check in (*traced.nodes, *traced.spread)]
    if nodes:
        agree = sum(check.predicted * check.measured > 0 for check in nodes) / len(nodes)
        traces = f"{len(checks):,} trace{'s' if len(checks) > 1 else ''}"
        values = {"traces": traces, "nodes": len(nodes), "agree": agree}
        yield _claim(agree >= MIN_SIGN_AGREEMENT, "traced", "checked", **values)


def _change(output: SteeredOutput) -> str:
    interval = " [{:+.1%}, {:+.1%}]".format(*output.interval) if output.interval else ""
    change = output.probability_after - output.probability_before
    return f"{output.name.strip()!r} {change:+.1%}{interval}"


def claims_about_all(runs: Sequence[ReportedRun]) -> list[ReportClaim]:
    """Claims about runs side by side; none for a single run."""
    return list(_together(runs)) if len(runs) > 1 else []


def _together(runs: Sequence[ReportedRun]) -> Iterator[ReportClaim]:
    models = len({run.graph.provenance.model_fingerprint for run in runs})
    several_bases = len({run.summary.basis for run in runs}) > 1
    if models > 1:
        yield _no("other_models", "weights", models=models)
    if len({tuple(sorted(run.graph.provenance.data_fingerprints.items())) for run in runs}) > 1:
        yield _no("other_data", "data")
    ablations = [run.record.ablation for run in runs if run.record.ablation and run.record.ablation.sections]
    conditions = {ablation.conditions for ablation in ablations}
    if several_bases and models == 1 and len(ablations) == len(runs) and len(conditions) == 1:
        yield _yes("comparable", "same")
    elif len(conditions) > 1:
        yield _no("comparable", "different")
    if several_bases and not any(run.record.controls for run in runs):
        yield _no("sparsest", "no_controls")
    if models > 1 and several_bases:
        yield _no("better_basis", "models", models=models)
