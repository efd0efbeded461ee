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
from interbasis.analysis.dictionaries.paths import EdgePaths
from interbasis.analysis.dictionaries.trace import DictionaryTrace
from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace
from interbasis.base.memory import format_bytes
from interbasis.base.records import Record
from interbasis.dictionaries.graph import DictionaryGraph, DictionaryGraphHeader, DictionaryPlan
from interbasis.show.precision import duration
from interbasis.show.result_tables import TABLES, TEXTS
from interbasis.show.tables import Parts, ResultTable, result_tables

FEATURES_SHOWN = 12
"""Features of a layer, or nodes of a trace, that a table shows."""


@result_tables.register
def graph_tables(header: DictionaryGraphHeader) -> Parts:
    """The dictionaries of a graph, and the edges between them."""
    return [TABLES("dictionary_edges", header.pairs)]


@result_tables.register
def dictionary_plan_tables(plan: DictionaryPlan) -> Parts:
    """Time, memory and disk of a graph between dictionaries, phase by phase."""
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
            text = description_text(feature.description, descriptions.words)
            often = None if graph is None else graph.statistics[k].frequency[feature.feature].item()
            rows.append((feature, text, often))
        parts.append(TABLES("descriptions", rows, layer=layer))
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
            (node, name(trace.tokens[node.position]), texts.get((layer.place, node.feature), ""))
            for node in layer.nodes[:FEATURES_SHOWN]
        ]
        rest = ", ".join(f"{kind} {value:+.2f}" for kind, value in layer.gradients.items())
        parts.append(TABLES("dictionary_trace", rows, layer=layer, nodes=len(layer.nodes), rest=rest))
    return [*parts, TEXTS["dictionary_trace"].format(target=name(trace.target), trace=trace)]


@result_tables.register
def ablation_tables(result: DictionaryAblation) -> Parts:
    """Edges required between every pair of dictionaries."""
    rows = [(pair, pair.trials[0] if pair.trials else None) for pair in result.pairs.values()]
    return [TABLES("dictionary_ablation", rows, metric=result.metric.replace("_", "-"), result=result)]


@result_tables.register
def path_tables(result: EdgePaths) -> Parts:
    """The strongest heads of an edge, by path."""
    heads = sorted(result.heads, key=lambda head: -max(head.value.rms, head.key.rms, head.query.rms))
    return [TABLES("dictionary_paths", heads[:FEATURES_SHOWN], result=result)]


@result_tables.register
def comparison_tables(result: DictionaryComparison) -> Parts:
    """Dictionaries and edges of two graphs side by side."""
    data = "the same data" if result.same_data else "different data"
    places = [(*row, "the same" if row[1].same else "different") for row in result.places.items()]
    return [
        f"Two graphs between dictionaries of {result.model or 'one network'}, built on {data}.",
        TABLES("compared_dictionaries", places),
        TABLES("compared_dictionary_edges", result.pairs.values()),
    ]


@result_tables.register
def check_tables(checks: EdgeChecksResult) -> Parts:
    """Agreement of edges with interventions at single tokens."""
    return [TABLES("checks", checks.pairs)]
