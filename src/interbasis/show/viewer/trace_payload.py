"""What the page is told of a trace."""

from interbasis.analysis.traces.records import (
    AttentionPaths,
    ErrorNode,
    NodeCheck,
    Trace,
    TraceChecks,
    TraceNode,
)
from interbasis.show.viewer.schema import (
    PageTrace,
    PageTraceChecks,
    PageTraceEdge,
    PageTraceGroup,
    PageTraceNode,
    PageTracePaths,
    PageTraceScores,
    PageTraceTarget,
    PageTraceToken,
)


def page_trace(name: str, trace: Trace) -> PageTrace:
    """The record of the page from the stored one."""
    checked = {one.node: one for one in (*trace.checks.nodes, *trace.checks.spread)} if trace.checks else {}
    return PageTrace(
        name=name,
        summary=trace.summary,
        trusted=trace.trusted or trace.checks is None,
        prompt=trace.prompt,
        tokens=tuple(
            PageTraceToken(position=one.position, token=one.token, text=one.text, influence=one.influence)
            for one in trace.tokens
        ),
        target=_target(trace),
        layers=tuple(layer.name for layer in trace.layers),
        nodes=(*(_node(one, checked.get(one.name)) for one in trace.nodes), *map(_error, trace.errors)),
        edges=tuple(
            PageTraceEdge(
                source=one.source,
                target=one.target,
                weight=one.weight,
                paths=one.paths and _paths(one.paths),
            )
            for one in trace.edges
        ),
        scores=PageTraceScores(
            replacement=trace.scores.replacement,
            completeness=trace.scores.completeness,
            error_share=trace.scores.error_share,
        ),
        checks=trace.checks and _checks(trace.checks),
        groups=tuple(PageTraceGroup(name=group.name, nodes=group.nodes) for group in trace.groups),
        settings=trace.settings.model_dump(mode="json"),
    )


def _target(trace: Trace) -> PageTraceTarget:
    target = trace.target
    found = next((one.probability for one in trace.outputs if one.index == target.output), 0.0)
    return PageTraceTarget(
        name=target.name,
        position=target.position,
        value=target.value,
        output=target.output,
        probability=found,
    )


def _node(node: TraceNode, check: NodeCheck | None) -> PageTraceNode:
    return PageTraceNode(
        name=node.name,
        layer=node.layer,
        feature=node.feature,
        whole=False,
        position=node.position,
        activation=node.activation,
        influence=node.influence,
        effect=node.effect,
        predicted=check and check.predicted,
        measured=check and check.measured,
    )


def _error(error: ErrorNode) -> PageTraceNode:
    return PageTraceNode(
        name=error.name,
        layer=error.layer,
        feature=None,
        whole=error.whole,
        position=error.position,
        activation=0.0,
        influence=error.influence,
        effect=error.effect,
        predicted=None,
        measured=None,
    )


def _paths(paths: AttentionPaths) -> PageTracePaths:
    return PageTracePaths(skip=paths.skip, value=paths.value, key=paths.key, query=paths.query)


def _checks(checks: TraceChecks) -> PageTraceChecks:
    return PageTraceChecks(
        strongest=checks.node_agreement.count,
        signs=checks.node_agreement.sign_agreement,
        signs_by_gradient=checks.gradient_agreement.sign_agreement,
        spread=checks.spread_agreement.count,
        ranks=checks.spread_agreement.rank_correlation,
        edges=checks.edge_agreement.count,
        edge_signs=checks.edge_agreement.sign_agreement,
    )
