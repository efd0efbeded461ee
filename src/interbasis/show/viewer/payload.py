"""The page's records of a run, made from its stored results."""

from contextlib import suppress
from pathlib import Path

from interbasis.analysis.differences.records import Difference
from interbasis.analysis.feature_matching import layer_overlaps
from interbasis.analysis.features.contexts import short
from interbasis.analysis.features.records import Effects, Feature, MeanEffects, MeanPush
from interbasis.analysis.run_record import RunRecord, read_results, read_run
from interbasis.analysis.shown_labels import shown_labels
from interbasis.analysis.stored_results import load_result
from interbasis.analysis.summary import LayerSummary, summarise
from interbasis.analysis.traces.records import Trace
from interbasis.analysis.workspace import Workspace
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import is_unfinished
from interbasis.show.precision import precision_sentence
from interbasis.show.rows import EDGE_LIMIT, LayerRows, is_output, layer_rows, section_rows
from interbasis.show.tables import ResultTable
from interbasis.show.viewer import schema
from interbasis.show.viewer.notes import NO_NOTES, Notes, notes_version

EFFECTS = 6
"""Outputs that a feature raises most, and as many that it lowers."""
MAX_TRACES = 200
"""Traces that a page holds, the newest; each takes about 60 kB."""
MIN_ONE_TO_ONE = 0.5
"""Share of Σ Ê² in the strongest edge of every feature from which on a layer norm's section is folded."""
OPENING_FEATURES = 32
"""Features of a layer that the page opens with, at most (`rowsThatFit` in main.js)."""


def run_payload(run: str | Path, limit: int = EDGE_LIMIT) -> schema.PageRun:
    """Everything the page shows of a run on disk; results that cannot be read are named and left out."""
    run = Path(run)
    record = read_run(run, skip_unreadable=True, max_traces=MAX_TRACES)
    payload = record_payload(record, limit)
    version = notes_version(run)  # first: notes that are newer than their version are merged, older ones lost
    name = run.resolve().name
    update: dict[str, object] = {"name": name, "digest": record.digest, "notes_version": version}
    try:
        update["notes"] = load_result(run, Notes, record.graph, record.digest)
    except InterbasisError as error:
        update["unreadable"] = (*payload.unreadable, str(error))
    return payload.model_copy(update=update)


def workspace_payload(run: Workspace, limit: int = EDGE_LIMIT) -> schema.PageRun:
    """Everything the page shows of an open run, with its stored results or those in memory."""
    payload = record_payload(read_results(run, skip_unreadable=True, max_traces=MAX_TRACES), limit)
    return payload if run.folder is None else payload.model_copy(update={"name": run.folder.resolve().name})


def describe_opening_view(run: Workspace) -> None:
    """Describe the features that the page opens with, as far as the run has not, and keep that in the run.

    A run that cannot be read whole, or whose model or data cannot be opened, is left as it is.
    """
    graph = run.graph
    opening = {
        layer.name: range(layer.first_feature, layer.features)[:OPENING_FEATURES]
        for k, layer in enumerate(graph.layers)
        if not is_folded(graph, k) and not is_output(graph, k)
    }
    with suppress(InterbasisError), run.working("labels"):
        shown_labels(run, opening)


def record_payload(record: RunRecord, limit: int = EDGE_LIMIT) -> schema.PageRun:
    """Everything the page shows of a run whose results have been read."""
    graph, summary = record.graph, summarise(record.graph)
    precision = graph.provenance.precision
    return schema.PageRun(
        name="",
        digest="",
        **summary.model_dump(include={"family", "model", "basis", "too_few_data"}),
        layers=tuple(_layer(graph, rows, summary.layers[rows.name]) for rows in layer_rows(record)),
        sections=tuple(map(schema.PageSection.model_validate, section_rows(record, limit))),
        about=schema.PageAbout(
            **summary.model_dump(include={"samples", "seconds", "versions"}),
            settings={
                name: ", ".join(map(str, value)) if isinstance(value, list) else value
                for name, value in graph.config.model_dump(mode="json").items()
            },
            model_fingerprint=graph.provenance.model_fingerprint,
            precision=precision_sentence(
                precision, record.folder is not None and is_unfinished(record.folder)
            )
            if precision is not None and precision.reached
            else "",
        ),
        ablation=record.ablation and schema.PageAblation.model_validate(record.ablation),
        curves=record.curves and schema.PageCurves.model_validate(record.curves),
        labelled=record.features is not None or record.labels is not None,
        examples=record.examples.kind if record.examples else record.labels and record.labels.kind,
        notes=None,
        notes_version=NO_NOTES,
        traces=tuple(page_trace(name, result.trace) for name, result in record.traces.items()),
        traces_left_out=record.traces_left_out,
        differences=tuple(_difference(name, result) for name, result in record.differences.items()),
        outdated=record.outdated,
        unreadable=record.unreadable,
    )


def is_folded(graph: InteractionGraph, k: int) -> bool:
    """Whether layer k only prepares a layer norm and goes almost 1 to 1 into the next.

    Of every feature the strongest edge counts: together they hold at least ``MIN_ONE_TO_ONE`` of the
    section's Σ Ê²; a graph without edges cannot tell. The layer inside a layer norm holds the variance as a
    feature of its own.
    """
    if k + 1 >= len(graph.layers) or not (graph.layers[k].isolated or graph.layers[k + 1].isolated):
        return False
    if not graph.edges:
        return True
    squares = graph.inner_edges(k).double().square()
    return squares.numel() > 0 and bool(squares.amax(0).sum() >= MIN_ONE_TO_ONE * squares.sum())


def output_names(rows: LayerRows, class_names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The names of the classes where the layer's features are the network's outputs."""
    if not rows.outputs:
        return None
    names = next((row.classes.names for row in rows.features.values() if row.classes), class_names)
    first = rows.basis.first_feature
    if len(names) != rows.basis.features - first:
        return None
    return ("",) * first + names


def _layer(graph: InteractionGraph, rows: LayerRows, summary: LayerSummary) -> schema.PageLayer:
    basis = rows.basis
    return schema.PageLayer(
        **summary.model_dump(include={"name", "hook", "width", "dropped_as_noise", "dropped_as_unused"}),
        size=basis.features,
        constant=basis.constant,
        isolated=basis.isolated,
        outputs=rows.outputs,
        output_names=output_names(rows, graph.provenance.class_names),
        folded=is_folded(graph, rows.index),
        ranked_by="variance" if rows.index + 1 == len(graph.layers) else graph.config.kind.ranked_by,
        eigenvalues=basis.eigenvalues,
        eigenvalue_errors=basis.eigenvalue_errors,
        modules=rows.modules,
        features=tuple(map(_feature, rows.features.values())),
        examples=tuple(rows.examples.values()),
    )


def _feature(feature: Feature) -> schema.PageFeature:
    shown = {
        "fourier": feature.fourier and feature.fourier.terms,
        "effects": feature.effects and _effects(feature.effects),
        "mean_effects": feature.mean_effects and _effects(feature.mean_effects),
        "evidence": tuple(
            schema.PageEvidence.model_validate(evidence).model_copy(update={"share": short(evidence.share)})
            for evidence in feature.evidence
        ),
    }
    return schema.PageFeature(**dict(feature) | shown)


def _effects(effects: Effects | MeanEffects) -> schema.PageEffects:
    rows = {
        schema.PagePush(
            name=push.name,
            value=short(push.value),
            error=short(push.error) if isinstance(push, MeanPush) else None,
        )
        for push in (*effects.up[:EFFECTS], *effects.down[:EFFECTS])
    }
    return schema.PageEffects(rows=tuple(sorted(rows, key=lambda row: -row.value)), share=effects.share)


def _difference(name: str, result: Difference) -> schema.PageDifference:
    from interbasis.show.difference_sentences import difference_findings  # pages without one do without it
    from interbasis.show.difference_tables import difference_tables

    tables = [part for part in difference_tables(result) if isinstance(part, ResultTable)]
    return schema.PageDifference(
        name=name,
        second=result.second.name,
        findings=tuple(difference_findings(result)),
        tables=tuple(map(schema.PageTable.model_validate, tables)),
    )


def page_trace(name: str, trace: Trace) -> schema.PageTrace:
    """The page's record of a stored trace."""
    checks = trace.checks
    changes = {
        check.node: {"predicted": check.predicted, "measured": check.measured}
        for check in ((*checks.nodes, *checks.spread) if checks else ())
    }
    nodes = map(schema.PageTraceNode.model_validate, (*trace.nodes, *trace.errors))
    target = schema.PageTraceTarget.model_validate(trace.target)
    if output := next((row for row in trace.outputs if row.index == target.output), None):
        target = target.model_copy(update={"probability": output.probability})
    same = ("summary", "prompt", "picture", "tokens", "edges", "scores", "groups")
    return schema.PageTrace(
        **{field: getattr(trace, field) for field in same},
        name=name,
        trusted=trace.trusted or checks is None,
        target=target,
        layers=tuple(layer.name for layer in trace.layers),
        grids=tuple(layer.grid for layer in trace.layers),
        nodes=tuple(node.model_copy(update=changes.get(node.name)) for node in nodes),
        checks=checks,
        settings=trace.settings.model_dump(mode="json"),
    )


def matches(a: InteractionGraph, b: InteractionGraph) -> tuple[schema.PageMatch, ...]:
    """For every layer of both graphs whose overlaps are known, each feature's best match."""
    layers = {layer.name: layer for layer in b.layers}
    matched = []
    for layer in a.layers:
        twin = layers.get(layer.name)
        if twin is None or layer.width != twin.width:
            continue
        overlaps = layer_overlaps(a, b, layer, twin)
        if overlaps is None:
            continue
        overlap = overlaps(None)
        first, second = overlap.max(1), overlap.max(0)
        matched.append(
            schema.PageMatch(
                layer=layer.name,
                first=first.indices,
                first_overlap=first.values,
                second=second.indices,
                second_overlap=second.values,
            )
        )
    return tuple(matched)
