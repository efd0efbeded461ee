"""Tables of graphs between dictionaries, their descriptions, traces and checks."""

from collections.abc import Iterator

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
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stages.steer import SteerResult
from interbasis.base.records import Record
from interbasis.dictionaries.graph import DictionaryGraph, DictionaryGraphHeader
from interbasis.show.result_tables import module_tables, steer_tables
from interbasis.show.tables import ResultTable

FEATURES_SHOWN = 12
"""Features of a layer, or nodes of a trace, that a table shows."""


def graph_tables(header: DictionaryGraphHeader) -> Iterator[ResultTable | str]:
    """The dictionaries of a graph, and the edges between them."""
    rows = [
        (pair.source, pair.target, f"{pair.tokens:,}", f"{pair.nonzero:,}", f"{pair.stored:,}",
         f"{pair.stored_share:.1%}", f"{pair.feature_share:.1%}")
        for pair in header.pairs
    ]  # fmt: skip
    yield ResultTable.from_cells(
        "Edges between dictionaries",
        ("from", "to", "tokens", "pairs active together", "stored", "share of Ê²", "share of features"),
        rows,
        "The last column is the share of features in Σ Ê² over all sources; the rest is the dictionary's "
        "error, what is carried past it, and the constant.",
        text=("to",),
    )


def tables(result: Record, workspace: DictionaryWorkspace) -> Iterator[ResultTable | str]:
    """Tables of any result of a graph between dictionaries."""
    if isinstance(result, DescriptionsResult):
        return description_tables(result, workspace.graph)
    if isinstance(result, DictionaryTrace):
        return trace_tables(result, workspace.stored(DescriptionsResult))
    if isinstance(result, EdgeChecksResult):
        return check_tables(result)
    if isinstance(result, DictionaryAblation):
        return ablation_tables(result)
    if isinstance(result, EdgePaths):
        return path_tables(result)
    if isinstance(result, ModulesResult):
        return iter(module_tables(result))
    assert isinstance(result, SteerResult)
    return iter(steer_tables(result))


def description_tables(found: DescriptionsResult, graph: DictionaryGraph) -> Iterator[ResultTable | str]:
    """The strongest features of every layer, with their descriptions."""
    for layer, statistics in zip(found.layers, graph.statistics, strict=True):
        strength = {feature.feature: statistics.square[feature.feature].item() for feature in layer.features}
        strongest = sorted(layer.features, key=lambda feature: -strength[feature.feature])[:FEATURES_SHOWN]
        rows = []
        for feature in strongest:
            known = feature.description
            scores = ("", "") if known is None else (f"{known.precision:.0%}", f"{known.recall:.0%}")
            frequency = f"{statistics.frequency[feature.feature].item():.2%}"
            rows.append((f"#{feature.feature}", description_text(known, found.words), frequency, *scores))
        title = f"{layer.place}: {layer.described} of {layer.active} active features have a short description"
        head = ("feature", "active where the token is", "active", "precision", "recall")
        yield ResultTable.from_cells(title, head, rows, text=("active where the token is",))


def trace_tables(trace: DictionaryTrace, known: DescriptionsResult | None) -> Iterator[ResultTable | str]:
    """The nodes with the largest effects, layer by layer."""
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
        yield ResultTable.from_cells(title, head, rows, text=("at", "description"))
    yield (
        f"Next token {name(trace.target)}. An effect is what its logit loses, as measured, when the feature "
        "is set to 0 there, or to its mean if it is usually active. Of the checked edges "
        f"{trace.sign_agreement:.0%} have the sign of what taking out the source does to the target (rank "
        f"correlation {trace.correlation:.2f}); gradients have the sign of the effect at "
        f"{trace.gradient_sign_agreement:.0%} of the nodes ({trace.gradient_correlation:.2f})."
    )


def ablation_tables(result: DictionaryAblation) -> Iterator[ResultTable | str]:
    """Edges required between every pair of dictionaries."""
    rows = [
        (pair.source, pair.target, pair.stored, pair.count, pair.random_count, pair.robust_count,
         pair.trials[0].value if pair.trials else None, pair.opposed_value)
        for pair in result.pairs.values()
    ]  # fmt: skip
    head = ("from", "to", "stored", "required", "in random order", "against an opponent",
            "metric with fewest tried", "metric at required, opposed")  # fmt: skip
    yield ResultTable.from_cells(
        f"Edges into active features that keep the {result.metric.replace('_', '-')} at "
        f"{result.limit:.4f} ({result.baseline:.4f} in the original model)",
        head,
        rows,
        "Dropped edges are at their mean where the target is active; which features are active stays as it "
        "is. A dash: not even all stored edges pass, or it was not asked for.",
        text=("to",),
    )


def path_tables(result: EdgePaths) -> Iterator[ResultTable | str]:
    """The strongest heads of an edge, by path."""

    def cell(strength: PathStrength) -> str:
        return f"{strength.rms:.3g} ({strength.mean:+.3g})"

    heads = sorted(result.heads, key=lambda head: -max(head.value.rms, head.key.rms, head.query.rms))
    rows = [(f"head {h.head}", cell(h.value), cell(h.key), cell(h.query)) for h in heads[:FEATURES_SHOWN]]
    yield ResultTable.from_cells(
        f"{result.source} → {result.target}, {result.tokens:,} tokens: {cell(result.total)}, past attention "
        f"{cell(result.skip)}",
        ("", "value", "key", "query"),
        rows,
        "Root mean square and, in brackets, mean over the tokens where the target is active and the source "
        "is, there or earlier. Value: what is moved; key: why it is attended to; query: why the token "
        "attends.",
    )


def comparison_tables(result: DictionaryComparison) -> Iterator[ResultTable | str]:
    """Dictionaries and edges of two graphs side by side."""
    data = "the same data" if result.same_data else "different data"
    yield f"Two graphs between dictionaries of {result.model or 'one network'}, built on {data}."
    places = [
        (place, *row.features, "the same" if row.same else "different")
        for place, row in result.places.items()
    ]
    yield ResultTable.from_cells("Dictionaries", ("place", "first", "second", "dictionary"), places)
    pairs = [
        (pair.source, pair.target, *(summary.stored for summary in pair.summaries), pair.shared,
         pair.correlation, pair.same_sign)
        for pair in result.pairs.values()
    ]  # fmt: skip
    head = ("from", "to", "stored, first", "stored, second", "strongest shared", "correlation", "same sign")
    yield ResultTable.from_cells(
        "Edges", head, pairs,
        "Edges are compared where both dictionaries are the same files; a dash: they are not.", text=("to",),
    )  # fmt: skip


def check_tables(checks: EdgeChecksResult) -> Iterator[ResultTable | str]:
    """Agreement of edges with interventions at single tokens."""
    rows = []
    for pair in checks.pairs:
        parts = (pair.attributions, pair.frozen, pair.weights)
        cells = [f"{part.sign_agreement:.0%}, {part.correlation:.2f}" for part in parts]
        rows.append((pair.source, pair.target, str(pair.edges), *cells))
    yield ResultTable.from_cells(
        "Predicted and measured loss of the target's pre-activation: sign agreement, rank correlation",
        ("from", "to", "edges", "edges' prediction", "attention frozen", "decoder · encoder"),
        rows,
        text=("to",),
    )
