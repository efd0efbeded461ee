"""Findings of a run in three sentences: how few edges suffice, what the features are, how far to trust it.

Every number comes from the run's results; where a stage was not run, its sentence says so.
"""

from collections.abc import Mapping

from interbasis.analysis.features.labels import MIN_SHARE
from interbasis.analysis.features.records import EvidenceKind
from interbasis.analysis.stages.modules import MIN_MODULARITY_Z
from interbasis.show.report.claims import claims
from interbasis.show.report.measurements import does_something, scrambled_counts, share_that_does_most
from interbasis.show.report.record import ReportedRun
from interbasis.show.sentences import read_texts
from interbasis.show.tables import percent

MAX_SECTIONS_LISTED = 4
"""Sections that are listed one by one; of more, the extremes."""
SENTENCES: dict[str, str] = read_texts("report/findings.toml")
NOUNS: Mapping[EvidenceKind, str] = {
    "token": "the token ", "class": "the class ", "direct effect": "its direct effect ",
    "mean effect": "its mean effect ",
}  # fmt: skip
"""Words before the text of some kinds of evidence."""


def findings(run: ReportedRun) -> tuple[str, ...]:
    """Three sentences about one run, and a fourth where results of an older graph are left out."""
    sentences = _edges(run), _features(run), _trust(run)
    if not run.record.outdated:
        return sentences
    return *sentences, SENTENCES["outdated"].format(commands=", ".join(run.record.outdated))


def _edges(run: ReportedRun) -> str:
    ablation = run.record.ablation
    if not run.graph.edges:
        return SENTENCES["no_edges"]
    if ablation is None or not ablation.sections:
        sections = run.summary.sections.values()
        carrying = {section.name: (section.edges_for_90_percent, section.edges) for section in sections}
        return SENTENCES["carrying"].format(share=_edge_share(carrying), listed=_listed(carrying))
    counts = {
        section.name: (
            section.headline if run.is_robust else section.count,
            run.summary.sections[source].edges,
        )
        for source, section in ablation.sections.items()
    }
    plain = sum(section.count for section in ablation.sections.values())
    kind = f"robustly; plain count {plain:,}" if run.is_robust else "plain count"
    listed = _listed(counts)
    if len(counts) == 1 < len(run.summary.sections):
        listed = f" ({next(iter(counts))}, the only section that was ablated)"
    share, metric = _edge_share(counts), ablation.metric.replace("_", "-")
    return SENTENCES["enough"].format(share=share, metric=metric, ablation=ablation, listed=listed, kind=kind)


def _edge_share(counts: dict[str, tuple[int, int]]) -> str:
    count, total = (sum(numbers) for numbers in zip(*counts.values(), strict=True))
    return f"{count:,} of {total:,} edges ({_percent(count, total)})"


def _listed(counts: dict[str, tuple[int, int]]) -> str:
    """The sections one by one, or the two extremes of many."""
    if len(counts) < 2:
        return ""
    if len(counts) <= MAX_SECTIONS_LISTED:
        parts = (f"{count:,} of {total:,} in {name}" for name, (count, total) in counts.items())
        return f" ({', '.join(parts)})"
    shares = {name: count / total for name, (count, total) in counts.items() if total}
    low, high = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    return f" (from {_percent(*counts[low])} in {low} to {_percent(*counts[high])} in {high})"


def _percent(part: int, whole: int) -> str:
    if not whole:
        return "none"
    return percent(part / whole, 1) if part / whole >= 0.001 or not part else "less than 0.1 %"


def _features(run: ReportedRun) -> str:
    examined = [(layer.name, feature) for layer in run.analysed_layers for feature in layer.features]
    if not examined:
        layers = [layer for layer in run.summary.layers.values() if layer.features > 1]
        if not layers:
            return SENTENCES["nothing_kept"]
        layer = min(layers, key=lambda layer: layer.effective_features / layer.features)
        return SENTENCES["concentrated"].format(layer=layer)
    best = {(name, feature.index): feature.evidence[0] for name, feature in examined if feature.evidence}
    explained = {
        place: evidence
        for place, evidence in best.items()
        if evidence.share >= MIN_SHARE and evidence.kind != "variance"
    }
    if not explained:
        return SENTENCES["unexplained"].format(examined=len(examined))
    (name, index), strongest = max(explained.items(), key=lambda item: item[1].share)
    several = strongest.kind == "token" and " / " in strongest.text
    noun = "the tokens " if several else NOUNS.get(strongest.kind, "")
    return SENTENCES["explained"].format(
        explained=len(explained), examined=len(examined), index=index, name=name, noun=noun,
        evidence=strongest, share=percent(strongest.share, 0),
    )  # fmt: skip


def _trust(run: ReportedRun) -> str:
    """Controls say most, then modules beyond chance, then curves; else how little may be said."""
    record, control = run.record, run.trained_control
    counted = scrambled_counts(record.controls.rows.values()) if record.controls else {}
    if control is not None and control.required and counted:
        needed = sum(section.count for section in control.required.values())
        name, fewest = min(counted.items(), key=lambda item: item[1])
        verdict = "was learnt" if needed < fewest else "is no evidence of learning"
        return SENTENCES["scrambled"].format(name=name, fewest=fewest, needed=needed, verdict=verdict)
    if (modules := record.modules) and (null := modules.null):
        numbers = SENTENCES["rewired"].format(modules=modules, null=null)
        name = "not_modular" if null.z < MIN_MODULARITY_Z else "modular"
        return SENTENCES[name].format(modules=modules, numbers=numbers)
    if record.curves and does_something(record.curves.curves.whole):
        curves = record.curves.curves
        fraction, value = share_that_does_most(curves)
        share, metric = percent(fraction, 1), curves.metric.replace("_", "-")
        return SENTENCES["all_at_once"].format(share=share, metric=metric, value=value, curves=curves)
    listed = claims(run)
    forbidden = sum(not claim.allowed for claim in listed)
    return SENTENCES["unmeasured"].format(forbidden=forbidden, statements=len(listed))
