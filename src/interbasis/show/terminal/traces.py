"""Traces and steering, for a terminal."""

from rich.console import RenderableType
from rich.text import Text

from interbasis.analysis.stages.steer import SteerResult
from interbasis.analysis.stages.trace import TraceResult
from interbasis.analysis.traces.records import Trace, TraceNode
from interbasis.show.terminal.tables import Column, ResultTable, make_table

NODES_SHOWN = 20
"""With the most influence."""


def trace_tables(result: TraceResult) -> list[RenderableType]:
    """The first line, scores, and the nodes with most influence beside what was measured."""
    trace = result.trace
    scores = trace.scores
    return [
        Text(trace.summary),
        f"{len(trace.nodes)} nodes, {len(trace.edges)} edges; replacement {scores.replacement:.3f}, "
        f"completeness {scores.completeness:.3f}, {scores.error_share:.1%} of the influence ends at dropped "
        f"directions{_whole(trace)}; in every layer the features followed hold {scores.coverage:.0%} "
        "of it or more",
        _nodes_table(trace),
    ]


def _whole(trace: Trace) -> str:
    """How much of it ends at tokens that the bases do not describe."""
    if not trace.scores.whole_share:
        return ""
    return f" ({trace.scores.whole_share:.1%} at whole tokens, whose massive activations the bases leave out)"


def _nodes_table(trace: Trace) -> ResultTable:
    numbers = ("activation", "influence", "effect", "predicted", "measured")
    table = make_table("", "node", Column("token", text=True), *numbers, Column("what it is", text=True))
    texts = {token.position: token.text for token in trace.tokens}
    measured = {check.node: check for check in (trace.checks.nodes if trace.checks else ())}
    for node in sorted(trace.nodes, key=_strength)[:NODES_SHOWN]:
        check = measured.get(node.name)
        table.add_row(
            node.name,
            repr(texts[node.position])[1:-1],
            f"{node.activation:.3g}",
            f"{node.influence:.1%}",
            f"{node.effect:+.3g}",
            f"{check.predicted:+.3g}" if check else "",
            f"{check.measured:+.3g}" if check else "",
            node.label,
        )
    table.caption = (
        "Effect: activation × gradient, for small changes. Predicted and measured: the change of the target "
        "when the feature is set to its mean there."
    )
    return table


def _strength(node: TraceNode) -> float:
    return -abs(node.effect)


def steer_tables(result: SteerResult) -> list[RenderableType]:
    """The outputs that change most, then both continuations."""
    title = f"{result.layer}:{result.feature} {result.by:+g} standard deviations  {result.label}"
    table = make_table(
        title, "next", "logit before", "logit after", "probability before", "probability after"
    )
    for output in result.outputs:
        table.add_row(
            repr(output.name)[1:-1],
            f"{output.before:.3f}",
            f"{output.after:.3f}",
            f"{output.probability_before:.2%}",
            f"{output.probability_after:.2%}",
        )
    parts: list[RenderableType] = [table]
    if result.continuation is not None and result.steered is not None:
        parts += [Text(f"without: {result.prompt}|{result.continuation}"), Text("")]
        parts += [Text(f"with:    {result.prompt}|{result.steered}")]
    return parts
