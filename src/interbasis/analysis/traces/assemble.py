"""Records of a trace from its walk."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.analysis.traces import records
from interbasis.analysis.traces.checks import agreement, check_agreement, spread, strongest
from interbasis.analysis.traces.records import TARGET, TraceNode, error_name, node_name
from interbasis.analysis.traces.rows import LayerState
from interbasis.analysis.traces.walk import StepMasks, WalkStep

if TYPE_CHECKING:
    from interbasis.analysis.traces.trace import Tracing

OUTPUTS_SHOWN = 10
"""Largest outputs at the target's position."""


@dataclass(frozen=True, eq=False)
class TracedLayer:
    """A step of the walk with the layer's state, the nodes and edges that pruning left, and effects."""

    step: WalkStep
    state: LayerState
    masks: StepMasks
    effects: Tensor  # [K] of the nodes
    error_effects: Tensor  # [T] of the dropped directions

    @property
    def name(self) -> str:
        return self.state.basis.name

    def node(self, k: int) -> str:
        """Name of the k-th node."""
        nodes = self.step.nodes
        return node_name(self.name, int(nodes.features[k]), int(nodes.positions[k]) + self.state.first)

    def error(self, t: int) -> str:
        """Name of the dropped directions at the layer's position t."""
        return error_name(self.name, t + self.state.first)


def assemble(tracing: "Tracing", layers: list[TracedLayer]) -> records.Trace:
    """Assemble all records; layers run from the target to the first."""
    nodes = tuple(_nodes(layers))
    tokens, target = _tokens(tracing, layers[-1].step), _target(tracing, layers[0].step)
    checks = _checks(tracing, layers, nodes) if tracing.settings.checks else None
    return records.Trace(
        summary=_summary(target, checks),
        prompt="".join(token.text for token in tokens),
        settings=tracing.settings,
        tokens=tokens,
        outputs=_outputs(tracing),
        target=target,
        layers=tuple(
            records.LayerTrace(
                name=layer.name,
                coverage=layer.step.coverage,
                error_share=layer.step.errors.sum().item(),
                selected=len(layer.step.nodes),
            )
            for layer in reversed(layers)
        ),
        nodes=nodes,
        errors=tuple(_errors(layers)),
        edges=tuple(_edges(layers)),
        scores=_scores(layers),
        checks=checks,
    )


def _target(tracing: "Tracing", step: WalkStep) -> records.TraceTarget:
    target, state = tracing.target, tracing.states[tracing.target.index]
    basis = target.basis
    return records.TraceTarget(
        name=target.label(tracing.names),
        kind="feature" if basis else "logit" if target.minus is None else "difference",
        position=target.position,
        value=target.value(state.f[None], state.first).item(),
        constant=step.constants[0].item(),
        output=None if basis else target.output,
        minus=target.minus,
        layer=basis.name if basis else None,
        feature=target.feature if basis else None,
    )


def _tokens(tracing: "Tracing", first: WalkStep) -> tuple[records.TraceToken, ...]:
    inputs, names = tracing.computation.inputs, tracing.names
    influence = torch.zeros(tracing.computation.positions, dtype=first.influence.dtype)
    influence.index_add_(0, first.nodes.positions.cpu(), first.influence.cpu())
    tokens = []
    for position, share in enumerate(influence.tolist()):
        token = None if inputs.is_floating_point() else int(inputs[position])
        text = "" if token is None else str(token) if names is None else names[token]
        tokens.append(records.TraceToken(position=position, token=token, text=text, influence=share))
    return tuple(tokens)


def _outputs(tracing: "Tracing") -> tuple[records.TraceOutput, ...]:
    last, names = tracing.states[-1], tracing.names
    place = tracing.target.position - last.first
    if place < 0:
        return ()
    logits = tracing.target.outputs(last.f[None], place)[0]
    shares = logits.double().softmax(0)
    top = logits.topk(min(OUTPUTS_SHOWN, len(logits)))
    return tuple(
        records.TraceOutput(
            index=i, name=str(i) if names is None else names[i], logit=logit, probability=shares[i].item()
        )
        for i, logit in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    )


def _nodes(layers: list[TracedLayer]) -> Iterator[TraceNode]:
    """In the order of layers, positions and features."""
    for number, layer in reversed(list(enumerate(layers))):
        step, state = layer.step, layer.state
        # the edge from the constant into a node belongs to the step to the layer before it
        constants = layers[number + 1].step.constants if number + 1 < len(layers) else None
        for k in layer.masks.nodes.nonzero()[:, 0].tolist():
            j, t = int(step.nodes.features[k]), int(step.nodes.positions[k])
            yield TraceNode(
                name=layer.node(k),
                layer=layer.name,
                feature=j,
                position=t + state.first,
                activation=state.features[t, j].item(),
                influence=step.influence[k].item(),
                effect=layer.effects[k].item(),
                constant=0.0 if constants is None else constants[k].item(),
            )


def _errors(layers: list[TracedLayer]) -> Iterator[records.ErrorNode]:
    for layer in reversed(layers):
        for t in layer.masks.errors.nonzero()[:, 0].tolist():
            yield records.ErrorNode(
                name=layer.error(t),
                layer=layer.name,
                position=t + layer.state.first,
                whole=bool(layer.state.whole[t]),
                influence=layer.step.errors[t].item(),
                effect=layer.error_effects[t].item(),
            )


def _edges(layers: list[TracedLayer]) -> Iterator[records.TraceEdge]:
    for number, layer in reversed(list(enumerate(layers))):
        step, count = layer.step, len(layer.step.nodes)
        weights, paths = torch.cat([step.edges.total, step.error_edges], dim=1), step.edges.paths
        for k, c in layer.masks.edges.nonzero().tolist():
            parts = None
            if paths is not None and c < count:
                parts = records.AttentionPaths(**{name: part[k, c].item() for name, part in paths.items()})
            yield records.TraceEdge(
                source=layer.node(c) if c < count else layer.error(c - count),
                target=TARGET if number == 0 else layers[number - 1].node(k),
                weight=weights[k, c].item(),
                share=step.shares[k, c].item(),
                paths=parts,
            )


def _scores(layers: list[TracedLayer]) -> records.TraceScores:
    steps = [layer.step for layer in layers]
    tokens = steps[-1].influence.sum().item()
    errors = sum(step.errors.sum().item() for step in steps)
    weights = [torch.ones(1).to(steps[0].influence), *(step.influence for step in steps[:-1])]
    pairs = list(zip(weights, steps, strict=True))
    through = sum((weight * step.non_error).sum().item() for weight, step in pairs)
    ends = tokens + errors  # nothing comes into them, so no error does
    return records.TraceScores(
        replacement=tokens / ends if ends else 0.0,
        completeness=(through + ends) / (sum(weight.sum().item() for weight in weights) + ends),
        error_share=errors,
        whole_share=sum(layer.step.errors[layer.state.whole].sum().item() for layer in layers),
        coverage=min(step.coverage for step in steps),
    )


def _checks(
    tracing: "Tracing", layers: list[TracedLayer], nodes: tuple[TraceNode, ...]
) -> records.TraceChecks:
    interventions, count = tracing.interventions, tracing.settings.checks
    best = strongest(nodes, count)
    checks = interventions.to_the_mean(best)
    sampled = interventions.to_the_mean(spread(nodes, count))
    other = interventions.to_other_values(best)
    edges = interventions.through_one_section(*_influential_edges(layers, nodes, count))
    return records.TraceChecks(
        nodes=checks,
        spread=sampled,
        other_values=other,
        edges=edges,
        node_agreement=check_agreement(checks),
        gradient_agreement=agreement([-node.effect for node in best], [check.measured for check in checks]),
        spread_agreement=check_agreement(sampled),
        other_agreement=check_agreement(other),
        edge_agreement=check_agreement(edges),
    )


def _influential_edges(
    layers: list[TracedLayer], nodes: tuple[TraceNode, ...], most: int
) -> tuple[list[tuple[TraceNode, TraceNode]], list[float]]:
    """(source, target) and weights of the edges with most influence between nodes that pruning left."""
    named = {node.name: node for node in nodes}
    edges = []
    for after, layer in pairwise(layers):
        count = len(layer.step.nodes)
        strength = after.step.influence[:, None] * layer.step.shares[:, :count]
        for k, c in layer.masks.edges[:, :count].nonzero().tolist():
            edges.append((strength[k, c].item(), after, layer, k, c))
    edges = sorted(edges, key=lambda edge: -edge[0])[:most]
    pairs = [(named[layer.node(c)], named[after.node(k)]) for _, after, layer, k, c in edges]
    return pairs, [layer.step.edges.total[k, c].item() for _, _, layer, k, c in edges]


def _summary(target: records.TraceTarget, checks: records.TraceChecks | None) -> str:
    """The first line: the target, and whether predictions held."""
    title = f"{target.name} at position {target.position}"
    if checks is None:
        return f"{title}: not checked by interventions."
    best, sampled = checks.node_agreement, checks.spread_agreement
    figures = (
        f"{best.sign_agreement:.0%} of the {best.count} strongest nodes change it in the predicted direction "
        f"when set to their mean, rank correlation {sampled.rank_correlation:.2f} over {sampled.count} nodes "
        "of all sizes"
    )
    if records.predictions_hold(checks):
        return f"{title}: predictions hold; {figures}."
    return f"{title}: predictions FAIL, do not rely on this trace; {figures}."
