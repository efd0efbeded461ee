"""The records of a trace from its walk."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.analysis.traces.checks import agreement, agreement_of, spread, strongest
from interbasis.analysis.traces.pruning import Kept
from interbasis.analysis.traces.records import (
    TARGET,
    AttentionPaths,
    EdgeCheck,
    ErrorNode,
    LayerTrace,
    TargetKind,
    Trace,
    TraceChecks,
    TraceEdge,
    TraceNode,
    TraceOutput,
    TraceScores,
    TraceTarget,
    TraceToken,
    error_name,
    node_name,
    predictions_hold,
)
from interbasis.analysis.traces.rows import LayerState
from interbasis.analysis.traces.targets import target_name
from interbasis.analysis.traces.walk import Step

if TYPE_CHECKING:
    from interbasis.analysis.traces.trace import Tracing

OUTPUTS_SHOWN = 10
"""Largest outputs at the target's position."""

Effects = tuple[Tensor, Tensor]


class Assembled:
    """A walk with what pruning left of it; steps run from the target to the first layer."""

    def __init__(
        self,
        tracing: "Tracing",
        states: list[LayerState],
        steps: list[Step],
        effects: list[Effects],
        kept: list[Kept],
    ):
        self.tracing, self.states, self.steps = tracing, states, steps
        self.effects, self.kept = effects, kept

    def trace(self) -> Trace:
        """All records."""
        nodes, errors, edges = self._nodes(), self._errors(), self._edges()
        checks = self._checks(nodes) if self.tracing.settings.checks else None
        target = self._target()
        return Trace(
            summary=_summary(target, checks),
            prompt="".join(token.text for token in self._tokens()),
            settings=self.tracing.settings,
            tokens=self._tokens(),
            outputs=self._outputs(),
            target=target,
            layers=tuple(self._layer(step) for step in reversed(self.steps)),
            nodes=nodes,
            errors=errors,
            edges=edges,
            scores=self._scores(),
            checks=checks,
        )

    def _state(self, step: Step) -> LayerState:
        return self.states[step.layer]

    def _name(self, step: Step, k: int) -> str:
        state = self._state(step)
        place = int(step.nodes.positions[k]) + state.first
        return node_name(state.basis.name, int(step.nodes.features[k]), place)

    def _target(self) -> TraceTarget:
        target = self.tracing.target
        own = self.tracing.states[target.index]
        kind: TargetKind = "feature" if target.basis else "logit" if target.minus is None else "difference"
        return TraceTarget(
            name=target_name(target, self.tracing.names),
            kind=kind,
            position=target.position,
            value=target.value_of(own.f[None], own.first).item(),
            constant=self.steps[0].constants[0].item(),
            output=None if target.basis else target.output,
            minus=target.minus,
            layer=target.basis.name if target.basis else None,
            feature=target.feature if target.basis else None,
        )

    def _tokens(self) -> tuple[TraceToken, ...]:
        inputs, names = self.tracing.computation.inputs, self.tracing.names
        first = self.steps[-1]
        influence = torch.zeros(self.tracing.computation.positions, dtype=first.influence.dtype)
        influence.index_add_(0, first.nodes.positions.cpu(), first.influence.cpu())
        tokens = []
        for position, share in enumerate(influence.tolist()):
            token = None if inputs.is_floating_point() else int(inputs[position])
            text = "" if token is None else str(token) if names is None else names[token]
            tokens.append(TraceToken(position=position, token=token, text=text, influence=share))
        return tuple(tokens)

    def _outputs(self) -> tuple[TraceOutput, ...]:
        tracing, last = self.tracing, self.tracing.states[-1]
        place = tracing.target.position - last.first
        if place < 0:
            return ()
        logits = tracing.target.outputs(last.f[None], place)[0]
        shares = logits.double().softmax(0)
        top = logits.topk(min(OUTPUTS_SHOWN, len(logits)))
        return tuple(
            TraceOutput(
                index=i,
                name=str(i) if tracing.names is None else tracing.names[i],
                logit=logit,
                probability=shares[i].item(),
            )
            for i, logit in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        )

    def _layer(self, step: Step) -> LayerTrace:
        return LayerTrace(
            name=self._state(step).basis.name,
            coverage=step.coverage,
            error_share=step.errors.sum().item(),
            selected=len(step.nodes),
        )

    def _nodes(self) -> tuple[TraceNode, ...]:
        """In the order of layers, positions and features; the edge from the constant is the next step's."""
        nodes = []
        for number in range(len(self.steps) - 1, -1, -1):
            step, state = self.steps[number], self._state(self.steps[number])
            below = self.steps[number + 1].constants if number + 1 < len(self.steps) else None
            for k in self.kept[number].nodes.nonzero()[:, 0].tolist():
                j, t = int(step.nodes.features[k]), int(step.nodes.positions[k])
                nodes.append(
                    TraceNode(
                        name=self._name(step, k),
                        layer=state.basis.name,
                        feature=j,
                        position=t + state.first,
                        activation=state.features[t, j].item(),
                        influence=step.influence[k].item(),
                        effect=self.effects[number][0][k].item(),
                        constant=0.0 if below is None else below[k].item(),
                    )
                )
        return tuple(nodes)

    def _errors(self) -> tuple[ErrorNode, ...]:
        errors = []
        for number in range(len(self.steps) - 1, -1, -1):
            step, state = self.steps[number], self._state(self.steps[number])
            for t in self.kept[number].errors.nonzero()[:, 0].tolist():
                errors.append(
                    ErrorNode(
                        name=error_name(state.basis.name, t + state.first),
                        layer=state.basis.name,
                        position=t + state.first,
                        whole=bool(state.whole[t]),
                        influence=step.errors[t].item(),
                        effect=self.effects[number][1][t].item(),
                    )
                )
        return tuple(errors)

    def _edges(self) -> tuple[TraceEdge, ...]:
        edges = []
        for number in range(len(self.steps) - 1, -1, -1):
            step, state = self.steps[number], self._state(self.steps[number])
            weights = torch.cat([step.edges.total, step.error_edges], dim=1)
            count = len(step.nodes)
            for k, c in self.kept[number].edges.nonzero().tolist():
                source = (
                    self._name(step, c)
                    if c < count
                    else error_name(state.basis.name, c - count + state.first)
                )
                edges.append(
                    TraceEdge(
                        source=source,
                        target=TARGET if number == 0 else self._name(self.steps[number - 1], k),
                        weight=weights[k, c].item(),
                        share=step.shares[k, c].item(),
                        paths=_paths(step, k, c) if c < count else None,
                    )
                )
        return tuple(edges)

    def _scores(self) -> TraceScores:
        tokens = self.steps[-1].influence.sum().item()
        errors = sum(step.errors.sum().item() for step in self.steps)
        weights = [torch.ones(1).to(self.steps[0].influence), *(step.influence for step in self.steps[:-1])]
        pairs = list(zip(weights, self.steps, strict=True))
        through = sum((weight * step.non_error).sum().item() for weight, step in pairs)
        ends = tokens + errors  # nothing comes into them, so no error does
        return TraceScores(
            replacement=tokens / ends if ends else 0.0,
            completeness=(through + ends) / (sum(weight.sum().item() for weight in weights) + ends),
            error_share=errors,
            whole_share=sum(step.errors[self._state(step).whole].sum().item() for step in self.steps),
            coverage=min(step.coverage for step in self.steps),
        )

    def _checks(self, nodes: tuple[TraceNode, ...]) -> TraceChecks:
        interventions, count = self.tracing.interventions, self.tracing.settings.checks
        best = strongest(nodes, count)
        checks = interventions.to_the_mean(best)
        sampled = interventions.to_the_mean(spread(nodes, count))
        other = interventions.to_other_values(best)
        edges = self._edge_checks({node.name: node for node in nodes})
        by_gradient = [-node.effect for node in best]
        return TraceChecks(
            nodes=checks,
            spread=sampled,
            other_values=other,
            edges=edges,
            node_agreement=agreement_of(checks),
            gradient_agreement=agreement(by_gradient, [check.measured for check in checks]),
            spread_agreement=agreement_of(sampled),
            other_agreement=agreement_of(other),
            edge_agreement=agreement_of(edges),
        )

    def _edge_checks(self, nodes: dict[str, TraceNode]) -> tuple[EdgeCheck, ...]:
        """The kept edges with most influence, between nodes."""
        places = []
        for number in range(1, len(self.steps)):
            step, count = self.steps[number], len(self.steps[number].nodes)
            strength = self.steps[number - 1].influence[:, None] * step.shares[:, :count]
            for k, c in self.kept[number].edges[:, :count].nonzero().tolist():
                places.append((number, k, c, strength[k, c].item()))
        places.sort(key=lambda place: -place[3])
        chosen = places[: self.tracing.settings.checks]
        pairs = [
            (nodes[self._name(self.steps[number], c)], nodes[self._name(self.steps[number - 1], k)])
            for number, k, c, _ in chosen
        ]
        weights = [self.steps[number].edges.total[k, c].item() for number, k, c, _ in chosen]
        return self.tracing.interventions.through_one_section(pairs, weights)


def _paths(step: Step, k: int, c: int) -> AttentionPaths | None:
    edges = step.edges
    if edges.skip is None or edges.value is None or edges.key is None or edges.query is None:
        return None
    parts = (part[k, c].item() for part in (edges.skip, edges.value, edges.key, edges.query))
    return AttentionPaths(**dict(zip(("skip", "value", "key", "query"), parts, strict=True)))


def _summary(target: TraceTarget, checks: TraceChecks | None) -> str:
    """The first line: what was traced, and whether predictions held."""
    what = f"{target.name} at position {target.position}"
    if checks is None:
        return f"{what}: not checked by interventions."
    best, sampled = checks.node_agreement, checks.spread_agreement
    figures = (
        f"{best.sign_agreement:.0%} of the {best.count} strongest nodes change it in the predicted direction "
        f"when set to their mean, rank correlation {sampled.rank_correlation:.2f} over {sampled.count} nodes "
        "of all sizes"
    )
    if predictions_hold(checks):
        return f"{what}: predictions hold; {figures}."
    return f"{what}: predictions FAIL, do not rely on this trace; {figures}."
