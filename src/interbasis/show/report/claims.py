"""Claims, by the evidence standards: which sentences the measurements of a run allow, and which they do not.

Every sentence is made from what was measured. What was not measured forbids what would need it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from interbasis.analysis.ablation.records import Control
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.modules import MIN_MODULARITY_Z
from interbasis.show.report.measurements import (
    area_with_interval,
    does_something,
    known_interval,
    scrambled_counts,
)
from interbasis.show.report.record import ReportedRun

MIN_SEED_AGREEMENT = 0.9
"""Agreement of partitions over seeds from which single features may be said to belong to a module."""
MAX_LISTED = 24
"""Layers or sections that a sentence lists."""
MIN_TIMES_NOISE_FLOOR = 10.0
"""The last feature kept is clear of the noise floor from so many times the floor on."""


@dataclass(frozen=True)
class ReportClaim:
    """A sentence about a run, whether it may be said, and why."""

    allowed: bool
    text: str
    because: str


_yes, _no = partial(ReportClaim, True), partial(ReportClaim, False)


def claims(run: ReportedRun) -> list[ReportClaim]:
    """Claims that one run allows, and claims that it does not."""
    scope = _no(
        "It holds for other seeds, models or data.",
        "A run is about one set of weights; sampling of data other than by the intervals given was not "
        "measured.",
    )
    parts = _graph, _edges, _ablation, _bases, _modules, _features
    return [*(claim for part in parts for claim in part(run)), scope]


def _each(values: Mapping[str, float], form: str) -> str:
    """Every layer or section with its value; of many, the extremes."""
    if len(values) <= MAX_LISTED:
        return ", ".join(f"{name} {value:{form}}" for name, value in values.items())
    low, high = (pick(values.items(), key=lambda item: item[1]) for pick in (min, max))
    return f"from {low[1]:{form}} ({low[0]}) to {high[1]:{form}} ({high[0]})"


def _graph(run: ReportedRun) -> Iterator[ReportClaim]:
    summary = run.summary
    features = _each({layer.name: layer.features for layer in summary.layers.values()}, ",")
    yield _yes(
        f"On {summary.samples['data']:,} samples the {summary.basis.upper()} basis of {run.model} keeps "
        f"these numbers of features: {features}.",
        "They were computed from all of these samples.",
    )
    near = {
        layer.name: margin
        for layer in summary.layers.values()
        if (margin := layer.last_kept_over_floor) is not None and margin < MIN_TIMES_NOISE_FLOOR
    }
    if near:
        yield _no(
            "These numbers of features are properties of the network.",
            "The last kept feature is near the noise floor; in multiples of the floor: "
            f"{_each(near, '.2g')}. Another floor keeps another number.",
        )
    config = run.graph.config
    if config.jacobian_sources or config.jacobian_queries:
        yield _no(
            "The basis is exact.",
            "Its Jacobians were sampled; the features' order may change where eigenvalues are close.",
        )
    errors = {
        layer.name: error
        for layer in summary.layers.values()
        if (error := layer.eigenvalue_error) is not None
    }
    if errors:
        yield _yes(
            f"Λ are estimates with these relative standard errors: {_each(errors, '.1%')}.",
            "Query positions were sampled; two halves of them were followed through all layers.",
        )


def _edges(run: ReportedRun) -> Iterator[ReportClaim]:
    if not run.graph.edges:
        yield _no("Anything about interactions.", "The run was built without edges.")
        return
    errors = {
        section.name: section.median_relative_error
        for section in run.summary.sections.values()
        if section.median_relative_error is not None
    }
    if errors:
        yield _yes(
            f"The edges are estimates with these median relative standard errors: {_each(errors, '.1%')}.",
            "They come from stochastic sources, whose spread was measured.",
        )
        yield _no(
            "One edge is stronger than another where they differ by less than their errors.",
            "The order of such edges is chance.",
        )
    else:
        yield _yes(
            "The edges are exact for these samples.",
            "They are sums over all samples and positions; no stochastic sources were used.",
        )
    if run.summary.edge_method == "gradient":
        yield _no(
            "The edges into a feature add up to its value.",
            "They use gradients at the end of the path (α = 1), which add up for ReLU MLPs only; "
            "--edge-method exact integrates along it.",
        )
    yield _no("An edge excites or inhibits.", "Ê is a root mean square over the data and has no sign.")


def _ablation(run: ReportedRun) -> Iterator[ReportClaim]:
    ablation = run.record.ablation
    if not ablation or not ablation.sections:
        yield _no(
            "Few edges suffice, or an edge is not needed.", "Nothing was ablated; see 'interbasis ablate'."
        )
    else:
        metric, sections = ablation.metric.replace("_", "-"), ablation.sections.values()
        counts = ", ".join(
            f"{section.name} {section.count:,}"
            + (f" (robust {section.robust.count:,})" if section.robust else "")
            for section in sections
        )
        spec = f" of {ablation.data.spec}" if ablation.data.spec else ""
        yield _yes(
            f"One section at a time, these numbers of the largest edges keep {metric} within "
            f"{ablation.tolerance:g} of {ablation.baseline:.5g}: {counts}.",
            f"Measured on {ablation.data.samples:,} samples{spec}."
            + ("" if ablation.all_tokens else " Tokens that the build left out were not masked."),
        )
        unstable = ", ".join(
            f"{section.name} {section.stable_count:,}"
            for section in sections
            if section.stable_count not in (None, section.count)
        )
        from_there = f"; from these counts on it stays within the tolerance: {unstable}" if unstable else ""
        yield _no(
            "No smaller number of edges would do.",
            f"Edges are ranked by Ê and the metric is not monotone in their number{from_there}; other sets "
            "were not tried.",
        )
        yield from _robust(ablation)
        missing = [section.name for section in run.sections.values() if section.edges_required is None]
        if missing:
            yield _no(
                "Few edges suffice in every section.",
                f"These sections were not ablated: {', '.join(missing)}.",
            )
        if ablation.data.fingerprint in run.graph.provenance.data_fingerprints.values():
            yield _no(
                "The counts hold for data that the basis has not seen.",
                "The ablation was evaluated on data that the graph was built on.",
            )
    yield from _whole(run)


def _robust(ablation: AblationResult) -> Iterator[ReportClaim]:
    """Claims that the search for bad masks allows; without one, none."""
    claim = "The edges that the ablation removed do nothing, in any combination."
    measured = {name: section.robust for name, section in ablation.sections.items() if section.robust}
    if not measured:
        yield _no(claim, "No harmful combination was searched for; see 'interbasis ablate --robust'.")
        return
    numbers = ", ".join(
        f"{ablation.sections[name].name} {robust.count:,} (plain {robust.plain:,})"
        for name, robust in measured.items()
    )
    level = next(iter(measured.values())).level
    yield _yes(
        f"With these numbers of edges no mask found within the rest, at level {level:g}, costs more than "
        f"{ablation.tolerance:g}: {numbers}.",
        "Masks were sought by gradient ascent from several starts; that none was found is not a proof.",
    )
    broken = [name for name, robust in measured.items() if robust.count > robust.plain]
    if broken:
        worst = ", ".join(
            f"{ablation.sections[name].name} {measured[name].worst_at_plain:.4g}" for name in broken
        )
        yield _no(claim, f"Masks within them miss the limit {ablation.limit:.5g}; the worst found: {worst}.")


def _whole(run: ReportedRun) -> Iterator[ReportClaim]:
    claim = "Few edges do the work of all, with all sections ablated together."
    result = run.record.curves
    if not result:
        yield _no(claim, "Curves over all sections were not measured; see 'interbasis curves'.")
        return
    whole = result.curves.whole
    if not does_something(whole):
        yield _no(
            claim,
            "The model with all edges cannot be distinguished from one with none, so there is nothing that "
            "edges could carry.",
        )
        return
    yield _yes(
        f"With edges ablated in all sections at once, the area under the faithfulness curve is "
        f"{area_with_interval(whole)} (95 % bootstrap interval).",
        f"Measured at {len(result.curves.fractions)} fractions of the edges; the interval is over samples.",
    )


def _bases(run: ReportedRun) -> Iterator[ReportClaim]:
    basis, result = run.summary.basis.upper(), run.record.controls
    if not result:
        yield _no(
            f"{basis} is sparser than another basis, or its sparsity was learnt.",
            "No controls were run (other bases, scrambled weights, random rankings); see "
            "'interbasis controls'.",
        )
        return
    rows = result.rows.values()
    control = run.trained_control
    if control is None:
        yield _no(f"{basis} is sparser than another basis.", f"The controls do not include {basis} itself.")
        return
    yield from _learnt(control, rows)
    yield from (_compared(control, row) for row in rows if row is not control)
    stress = [section for row in rows for section in row.stress.values()]
    failed = sum(section.failed for section in stress)
    if failed:
        yield _no(
            "The edges that the ablation removed do nothing.",
            f"{failed} of {sum(section.tried for section in stress)} halves of them, ablated alone, miss the "
            "threshold: effects of these edges cancel.",
        )


def _learnt(control: Control, rows: Iterable[Control]) -> Iterator[ReportClaim]:
    """Edges required tell trained networks from scrambled ones better than areas do (docs/evidence.md)."""
    claim = "It was learnt that few edges suffice."
    counted = scrambled_counts(rows)
    if not control.required or not counted:
        yield _no(
            claim,
            "Edges required were not counted in a scrambled network that computes anything; see "
            "'interbasis controls'.",
        )
        return
    needed = sum(section.count for section in control.required.values())
    scrambled = ", ".join(f"{count:,} ({name})" for name, count in counted.items())
    numbers = f"Edges required over all sections: {needed:,}, against {scrambled}, on their own answers."
    if needed < min(counted.values()):
        yield _yes(claim, numbers)
    else:
        yield _no(claim, f"{numbers} A scrambled network needs no more.")


def _compared(control: Control, other: Control) -> ReportClaim:
    """Areas with all sections ablated at once; apart only where the intervals do not touch."""
    a, b = control.curves.whole, other.curves.whole
    numbers = f"Areas, all sections at once: {area_with_interval(a)} against {area_with_interval(b)}."
    text = f"{control.name} does more with few edges than [{other.name}] on this model."
    if not (does_something(a) and does_something(b)):
        return _no(text, f"{numbers} One of the two cannot be distinguished from a model without edges.")
    limits, other_limits = known_interval(a), known_interval(b)
    if limits is None or other_limits is None:
        return _no(text, f"{numbers} There are no intervals to compare.")
    if limits[0] > other_limits[1]:
        return _yes(text, f"{numbers} The intervals are apart.")
    if limits[1] < other_limits[0]:
        return _no(text, f"{numbers} It is the other way round.")
    return _no(text, f"{numbers} The intervals overlap.")


def _modules(run: ReportedRun) -> Iterator[ReportClaim]:
    modules = run.record.modules
    if not modules:
        yield _no("The graph has modules.", "They were not searched for; see 'interbasis modules'.")
        return
    size, null = f"modularity {modules.modularity:.3f}", modules.null
    if not null:
        yield _no("The graph has modules.", f"Its {size} was not compared with rewired graphs.")
        return
    numbers = f"{null.mean:.3f} ± {null.deviation:.3f} in {null.graphs} rewired graphs, z = {null.z:.1f}"
    if null.z < MIN_MODULARITY_Z:
        yield _no("The graph has modules.", f"Its {size} is not above chance: {numbers}.")
        return
    yield _yes(f"The graph is more modular than graphs with the same degrees: {size}.", f"Against {numbers}.")
    agreement = modules.agreement_over_seeds
    if agreement is None or agreement < MIN_SEED_AGREEMENT:
        measured = "was not measured" if agreement is None else f"is {agreement:.2f}"
        yield _no(
            "A single feature belongs to a particular module.",
            f"The agreement of partitions over seeds {measured}, where 1 is the same partition and "
            f"{MIN_SEED_AGREEMENT} is required here.",
        )
    yield _no(
        "Modules are functional parts of the network.",
        "Modularity is a property of the edges; there was no intervention on a module.",
    )


def _features(run: ReportedRun) -> Iterator[ReportClaim]:
    if not run.record.features:
        yield _no("A feature means something.", "Features were not described; see 'interbasis features'.")
        return
    yield _yes(
        "Features correlate with what their labels name, to the degree that the labels state.",
        "Labels are computed from activations and direct effects on these data.",
    )
    yield _no(
        "The network uses a feature for what its label names.",
        "Labels are correlations; there was no intervention.",
    )


def claims_about_all(runs: Sequence[ReportedRun]) -> list[ReportClaim]:
    """Claims about runs side by side; none for a single run."""
    return list(_together(runs)) if len(runs) > 1 else []


def _together(runs: Sequence[ReportedRun]) -> Iterator[ReportClaim]:
    models = {run.graph.provenance.model_fingerprint for run in runs}
    bases = {run.summary.basis for run in runs}
    if len(models) > 1:
        yield _no(
            "Differences between runs of different models come from their bases or settings.",
            f"The runs are of {len(models)} different sets of weights.",
        )
    if len({tuple(sorted(run.graph.provenance.data_fingerprints.items())) for run in runs}) > 1:
        yield _no(
            "Differences between the runs do not come from the data.", "They were built on different data."
        )
    ablations = [run.record.ablation for run in runs if run.record.ablation and run.record.ablation.sections]
    conditions = {ablation.conditions for ablation in ablations}
    comparable = "The edges required in these runs may be compared."
    if len(bases) > 1 and len(models) == 1 and len(ablations) == len(runs) and len(conditions) == 1:
        yield _yes(comparable, "They are of one model, one metric, one tolerance and the same data.")
    elif len(conditions) > 1:
        yield _no(comparable, "They were measured with different metrics, tolerances, tokens or data.")
    if len(bases) > 1 and not any(run.record.controls for run in runs):
        yield _no(
            "One of these bases is sparser than another.",
            "A count of edges required has no uncertainty, and no controls were run; see "
            "'interbasis controls'.",
        )
    if len(models) > 1 and len(bases) > 1:
        yield _no(
            "A basis is better in general.",
            f"{len(models)} models were compared; state for how many of them it holds.",
        )
