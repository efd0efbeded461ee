"""The records of a trace from its walk."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.traces.checks import Change, agreement, changed, measured
from interbasis.traces.pruning import Kept
from interbasis.traces.records import (
    TARGET,
    Agreement,
    AttentionPaths,
    EdgeCheck,
    ErrorNode,
    LayerTrace,
    NodeCheck,
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
from interbasis.traces.rows import LayerState
from interbasis.traces.targets import target_name
from interbasis.traces.walk import Step

if TYPE_CHECKING:
    from interbasis.traces.trace import Tracing

OUTPUTS_SHOWN = 10
"""Largest outputs at the target's position."""
OTHER_VALUES = (0.9, 2.0)
"""What a checked feature is set to besides its mean, in units of its activation."""

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
        checks = self._checks() if self.tracing.settings.checks else None
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
                        effect=self.effects[number][0][t, j].item(),
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
        return TraceScores(
            replacement=tokens / (tokens + errors) if tokens + errors else 0.0,
            completeness=through / sum(weight.sum().item() for weight in weights),
            error_share=errors,
            coverage=min(step.coverage for step in self.steps),
        )

    def _checks(self) -> TraceChecks:
        nodes = self._node_checks([0.0])
        other = self._node_checks(list(OTHER_VALUES))
        edges = self._edge_checks()
        return TraceChecks(
            nodes=nodes,
            other_values=other,
            edges=edges,
            node_agreement=_agreement(nodes),
            other_agreement=_agreement(other),
            edge_agreement=_agreement(edges),
        )

    def _node_checks(self, values: list[float]) -> tuple[NodeCheck, ...]:
        """The kept nodes with most influence, set to ``values`` times their activation."""
        places = [
            (number, k, self.steps[number].influence[k].item())
            for number, kept in enumerate(self.kept)
            for k in kept.nodes.nonzero()[:, 0].tolist()
        ]
        places.sort(key=lambda place: -place[2])
        changes, names, predicted = [], [], []
        for number, k, _ in places[: self.tracing.settings.checks]:
            step = self.steps[number]
            j, t = int(step.nodes.features[k]), int(step.nodes.positions[k])
            now = self._state(step).features[t, j].item()
            for value in values:
                changes.append(Change(step.layer, j, t, value * now))
                names.append(self._name(step, k))
                predicted.append((value - 1) * self._effect(number, k))
        found = measured(self.tracing.network, self.tracing.states, self.tracing.target, changes)
        return tuple(
            NodeCheck(node=name, set_to=change.value, predicted=p, measured=m)
            for name, change, p, m in zip(names, changes, predicted, found, strict=True)
        )

    def _effect(self, number: int, k: int) -> float:
        step = self.steps[number]
        return self.effects[number][0][step.nodes.positions[k], step.nodes.features[k]].item()

    def _edge_checks(self) -> tuple[EdgeCheck, ...]:
        """The kept edges with most influence, between nodes: the source at its mean, one section run."""
        places = []
        for number in range(1, len(self.steps)):
            step, count = self.steps[number], len(self.steps[number].nodes)
            strength = self.steps[number - 1].influence[:, None] * step.shares[:, :count]
            for k, c in self.kept[number].edges[:, :count].nonzero().tolist():
                places.append((number, k, c, strength[k, c].item()))
        places.sort(key=lambda place: -place[3])
        checks = []
        for number, k, c, _ in places[: self.tracing.settings.checks]:
            step, after = self.steps[number], self.steps[number - 1]
            state, following = self._state(step), self._state(after)
            j, t = int(step.nodes.features[c]), int(step.nodes.positions[c])
            i, s = int(after.nodes.features[k]), int(after.nodes.positions[k])
            f = changed(state, Change(step.layer, j, t, 0.0))
            moved = self.tracing.network.sections[step.layer](f[None])[0, s]
            change = moved @ following.cotangents(torch.tensor([i]))[0] - following.features[s, i]
            checks.append(
                EdgeCheck(
                    source=self._name(step, c),
                    target=self._name(after, k),
                    predicted=-step.edges.total[k, c].item(),
                    measured=change.item(),
                )
            )
        return tuple(checks)


def _paths(step: Step, k: int, c: int) -> AttentionPaths | None:
    edges = step.edges
    if edges.skip is None or edges.value is None or edges.key is None or edges.query is None:
        return None
    parts = (part[k, c].item() for part in (edges.skip, edges.value, edges.key, edges.query))
    return AttentionPaths(**dict(zip(("skip", "value", "key", "query"), parts, strict=True)))


def _agreement(checks: Sequence[NodeCheck] | Sequence[EdgeCheck]) -> Agreement:
    return agreement([check.predicted for check in checks], [check.measured for check in checks])


def _summary(target: TraceTarget, checks: TraceChecks | None) -> str:
    """The first line: what was traced, and whether predictions held."""
    what = f"{target.name} at position {target.position}"
    if checks is None:
        return f"{what}: not checked by interventions."
    found = checks.node_agreement
    figures = (
        f"{found.sign_agreement:.0%} of {found.count} measured changes have the predicted sign, "
        f"rank correlation {found.rank_correlation:.2f}"
    )
    if predictions_hold(found):
        return f"{what}: predictions hold; {figures}."
    return f"{what}: predictions FAIL, do not rely on this trace; {figures}."
