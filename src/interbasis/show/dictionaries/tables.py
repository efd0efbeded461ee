"""Tables of graphs between dictionaries, their descriptions, traces and checks."""

from collections.abc import Iterable

from interbasis.analysis.dictionaries.ablation import DictionaryAblation
from interbasis.analysis.dictionaries.checks import EdgeChecksResult
from interbasis.analysis.dictionaries.compare import DictionaryComparison
from interbasis.analysis.dictionaries.descriptions import (
    DescriptionsResult,
    description_text,
    feature_texts,
)
from interbasis.analysis.dictionaries.paths import EdgePaths, PathStrength
from interbasis.analysis.dictionaries.trace import DictionaryTrace
from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace
from interbasis.base.memory import format_bytes
from interbasis.base.records import Record
from interbasis.dictionaries.graph import DictionaryGraph, DictionaryGraphHeader, DictionaryPlan
from interbasis.show import result_tables as stage_tables  # noqa: F401  (they register their tables)
from interbasis.show.precision import duration
from interbasis.show.tables import Parts, ResultTable, result_tables

FEATURES_SHOWN = 12
"""Features of a layer, or nodes of a trace, that a table shows."""


@result_tables.register
def graph_tables(header: DictionaryGraphHeader) -> Parts:
    """The dictionaries of a graph, and the edges between them."""
    rows = [
        (pair.source, pair.target, f"{pair.tokens:,}", f"{pair.nonzero:,}", f"{pair.stored:,}",
         f"{pair.stored_share:.1%}", f"{pair.feature_share:.1%}")
        for pair in header.pairs
    ]  # fmt: skip
    return [
        ResultTable.from_cells(
            "Edges between dictionaries",
            ("from", "to", "tokens", "pairs active together", "stored", "share of Ê²", "share of features"),
            rows,
            "The last column is the share of features in Σ Ê² over all sources; the rest is the dictionary's "
            "error, what is carried past it, and the constant.",
            text=("to",),
        )
    ]


@result_tables.register
def dictionary_plan_tables(plan: DictionaryPlan) -> Parts:
    """What a graph between dictionaries takes, phase by phase."""
    phases = {
        "survey": plan.survey, "LIB's bases": plan.bases, "edges, once": plan.fixed,
        "edges, sums over the data": plan.edges, "all": plan.seconds,
    }  # fmt: skip
    rows = [
        (name, duration(cost.wall), duration(cost.processor),
         f"{cost.processor / plan.forward.processor:.1f}" if plan.forward.processor else None)
        for name, cost in phases.items()
        if cost.wall
    ]  # fmt: skip
    machines = (
        f" {plan.processes} devices like this one share the sums over the data: "
        f"{duration(plan.wall)} on the wall."
        if plan.processes > 1
        else ""
    )
    return [
        f"{plan.model}: {plan.samples:,} samples, {plan.samples * plan.positions:,} tokens",
        ResultTable.from_cells(
            "Graph between dictionaries", ("phase", "time", "processor", "forward passes"), rows,
            f"From a trial that took {duration(plan.trial.wall)}.{machines}",
        ),
        f"memory {format_bytes(plan.memory)} without a limit (--memory divides the edges into passes), disk "
        f"at most {format_bytes(plan.disk)}, and {format_bytes(plan.unfinished)} until the build ends",
    ]  # fmt: skip


def tables(result: Record, workspace: DictionaryWorkspace) -> Iterable[ResultTable | str]:
    """Tables of any result, with what the run knows about its features."""
    if isinstance(result, DescriptionsResult):
        return description_tables(result, workspace.graph)
    if isinstance(result, DictionaryTrace):
        return trace_tables(result, workspace.stored(DescriptionsResult))
    return result_tables(result)


@result_tables.register
def description_tables(descriptions: DescriptionsResult, graph: DictionaryGraph | None = None) -> Parts:
    """The strongest features of every layer, with their descriptions."""
    parts: Parts = []
    for k, layer in enumerate(descriptions.layers):
        squares = None if graph is None else graph.statistics[k].square
        strength = {
            feature.feature: max((example.value for example in feature.examples), default=0.0)
            if squares is None
            else squares[feature.feature].item()
            for feature in layer.features
        }
        strongest = sorted(layer.features, key=lambda feature: -strength[feature.feature])[:FEATURES_SHOWN]
        rows = []
        for feature in strongest:
            known = feature.description
            scores = (None, None) if known is None else (f"{known.precision:.0%}", f"{known.recall:.0%}")
            often = None if graph is None else f"{graph.statistics[k].frequency[feature.feature]:.2%}"
            rows.append((f"#{feature.feature}", description_text(known, descriptions.words), often, *scores))
        title = f"{layer.place}: {layer.described} of {layer.active} active features have a short description"
        head = ("feature", "active where the token is", "active", "precision", "recall")
        parts.append(ResultTable.from_cells(title, head, rows, text=("active where the token is",)))
    return parts


@result_tables.register
def trace_tables(trace: DictionaryTrace, known: DescriptionsResult | None = None) -> Parts:
    """The nodes with the largest effects, layer by layer."""
    parts: Parts = []
    texts = {} if known is None else feature_texts(known)

    def name(token: int) -> str:
        return repr(trace.words[token]) if token in trace.words else str(token)

    for layer in trace.layers:
        rows = [
            (f"#{node.feature}", name(trace.tokens[node.position]), f"{node.effect:+.3f}",
             f"{node.gradient:+.3f}",
             texts.get((layer.place, node.feature), ""))
            for node in layer.nodes[:FEATURES_SHOWN]
        ]  # fmt: skip
        rest = ", ".join(f"{kind} {value:+.2f}" for kind, value in layer.gradients.items())
        count = f"{len(layer.nodes)} nodes of {layer.active} active features"
        title = f"{layer.place}: {count}; gradient times activation: {rest}"
        head = ("feature", "at", "effect", "to first order", "description")
        parts.append(ResultTable.from_cells(title, head, rows, text=("at", "description")))
    parts.append(
        f"Next token {name(trace.target)}. An effect is what its logit loses, as measured, when the "
        "feature is set to 0 there, or to its mean if it is usually active. Of the checked edges "
        f"{trace.sign_agreement:.0%} have the sign of what taking out the source does to the target "
        f"(rank correlation {trace.correlation:.2f}); gradients have the sign of the effect at "
        f"{trace.gradient_sign_agreement:.0%} of the nodes ({trace.gradient_correlation:.2f})."
    )
    return parts


@result_tables.register
def ablation_tables(result: DictionaryAblation) -> Parts:
    """Edges required between every pair of dictionaries."""
    rows = [
        (pair.source, pair.target, pair.stored, pair.count, pair.random_count, pair.robust_count,
         pair.trials[0].value if pair.trials else None, pair.opposed_value)
        for pair in result.pairs.values()
    ]  # fmt: skip
    head = ("from", "to", "stored", "required", "in random order", "against an opponent",
            "metric with fewest tried", "metric at required, opposed")  # fmt: skip
    return [
        ResultTable.from_cells(
            f"Edges into active features that keep the {result.metric.replace('_', '-')} at "
            f"{result.limit:.4f} ({result.baseline:.4f} in the original model)",
            head,
            rows,
            "Dropped edges are at their mean where the target is active; which features are active stays as "
            "it is. A dash: not even all stored edges pass, or it was not asked for.",
            text=("to",),
        )
    ]


@result_tables.register
def path_tables(result: EdgePaths) -> Parts:
    """The strongest heads of an edge, by path."""

    def cell(strength: PathStrength) -> str:
        return f"{strength.rms:.3g} ({strength.mean:+.3g})"

    heads = sorted(result.heads, key=lambda head: -max(head.value.rms, head.key.rms, head.query.rms))
    rows = [(f"head {h.head}", cell(h.value), cell(h.key), cell(h.query)) for h in heads[:FEATURES_SHOWN]]
    return [
        ResultTable.from_cells(
            f"{result.source} → {result.target}, {result.tokens:,} tokens: {cell(result.total)}, past "
            f"attention {cell(result.skip)}",
            ("", "value", "key", "query"),
            rows,
            "Root mean square and, in brackets, mean over the tokens where the target is active and the "
            "source is, there or earlier. Value: what is moved; key: why it is attended to; query: why the "
            "token attends.",
        )
    ]


@result_tables.register
def comparison_tables(result: DictionaryComparison) -> Parts:
    """Dictionaries and edges of two graphs side by side."""
    parts: Parts = []
    data = "the same data" if result.same_data else "different data"
    parts.append(f"Two graphs between dictionaries of {result.model or 'one network'}, built on {data}.")
    places = [
        (place, *row.features, "the same" if row.same else "different")
        for place, row in result.places.items()
    ]
    parts.append(ResultTable.from_cells("Dictionaries", ("place", "first", "second", "dictionary"), places))
    pairs = [
        (pair.source, pair.target, *(summary.stored for summary in pair.summaries), pair.shared,
         pair.correlation, pair.same_sign)
        for pair in result.pairs.values()
    ]  # fmt: skip
    head = ("from", "to", "stored, first", "stored, second", "strongest shared", "correlation", "same sign")
    parts.append(ResultTable.from_cells(
        "Edges", head, pairs,
        "Edges are compared where both dictionaries are the same files; a dash: they are not.", text=("to",),
    ))  # fmt: skip
    return parts


@result_tables.register
def check_tables(checks: EdgeChecksResult) -> Parts:
    """Agreement of edges with interventions at single tokens."""
    rows = []
    for pair in checks.pairs:
        parts = (pair.attributions, pair.frozen, pair.weights)
        cells = [f"{part.sign_agreement:.0%}, {part.correlation:.2f}" for part in parts]
        rows.append((pair.source, pair.target, str(pair.edges), *cells))
    return [
        ResultTable.from_cells(
            "Predicted and measured loss of the target's pre-activation: sign agreement, rank correlation",
            ("from", "to", "edges", "edges' prediction", "attention frozen", "decoder · encoder"),
            rows,
            text=("to",),
        )
    ]
