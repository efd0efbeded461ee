"""Tables of graphs between dictionaries, their descriptions, traces and checks."""

from collections.abc import Iterator, Sequence

from interbasis.dictionaries.checks import AllEdgeChecks
from interbasis.dictionaries.graph import DictionaryGraph, DictionaryGraphHeader
from interbasis.dictionaries.labels import FeatureDescriptions, description_text
from interbasis.dictionaries.trace import DictionaryTrace
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


def description_tables(
    found: FeatureDescriptions, graph: DictionaryGraph, names: Sequence[str] | None
) -> Iterator[ResultTable | str]:
    """The strongest features of every layer, with their descriptions."""
    for layer, statistics in zip(found.layers, graph.statistics, strict=True):
        strength = {feature.feature: statistics.square[feature.feature].item() for feature in layer.features}
        strongest = sorted(layer.features, key=lambda feature: -strength[feature.feature])[:FEATURES_SHOWN]
        rows = []
        for feature in strongest:
            known = feature.description
            scores = ("", "") if known is None else (f"{known.precision:.0%}", f"{known.recall:.0%}")
            frequency = f"{statistics.frequency[feature.feature].item():.2%}"
            rows.append((f"#{feature.feature}", description_text(known, names), frequency, *scores))
        title = f"{layer.place}: {layer.described} of {layer.active} active features have a short description"
        head = ("feature", "active where the token is", "active", "precision", "recall")
        yield ResultTable.from_cells(title, head, rows, text=("active where the token is",))


def trace_tables(
    trace: DictionaryTrace, known: FeatureDescriptions | None, names: Sequence[str] | None
) -> Iterator[ResultTable | str]:
    """The nodes with the largest effects, layer by layer."""
    texts = {
        (layer.place, feature.feature): description_text(feature.description, names)
        for layer in (() if known is None else known.layers)
        for feature in layer.features
    }

    def name(token: int) -> str:
        return repr(names[token]) if names else str(token)

    for layer in trace.layers:
        rows = [
            (f"#{node.feature}", name(trace.tokens[node.position]), f"{node.effect:+.3f}",
             "" if node.measured is None else f"{node.measured:+.3f}",
             texts.get((layer.place, node.feature), ""))
            for node in layer.nodes[:FEATURES_SHOWN]
        ]  # fmt: skip
        rest = ", ".join(f"{kind} {value:+.2f}" for kind, value in layer.effects.items())
        count = f"{len(layer.nodes)} nodes of {layer.active} active features"
        title = f"{layer.place}: {count}; total effects: {rest}"
        head = ("feature", "at", "effect", "measured", "description")
        yield ResultTable.from_cells(title, head, rows, text=("at", "description"))
    yield (
        f"Next token {name(trace.target)}. Set to 0, or to their mean, one at a time, "
        f"{trace.sign_agreement:.0%} of the checked nodes move its logit in the predicted direction (rank "
        f"correlation {trace.correlation:.2f})."
    )


def check_tables(checks: AllEdgeChecks) -> Iterator[ResultTable | str]:
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
