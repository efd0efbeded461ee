"""Checks of a trace's predictions: features are set to a value, and the sections after them run.

Which nodes are checked is decided by their effect alone: the strongest have the largest |effect|, and as many
others are taken at equal distances from the ranking of all nodes by |effect|, so that ranks are compared over
effects of all sizes. What setting a feature to its mean does is predicted by the slope of the target averaged
on the way to the mean (`slopes.py`), what other values do by the gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import spearmanr
from torch import Tensor

from interbasis.analysis.traces.records import CheckAgreement, EdgeCheck, NodeCheck, TraceNode
from interbasis.analysis.traces.rows import LayerState
from interbasis.analysis.traces.slopes import averaged_slopes
from interbasis.analysis.traces.targets import Target
from interbasis.network.network import Network

MAX_RUN_ELEMENTS = 2**23
"""Activations that are run at once."""
OTHER_VALUES = (0.9, 2.0)
"""Values that a checked feature is set to besides its mean, in units of its activation."""


@dataclass(frozen=True)
class NodeChange:
    """A feature at a position of a layer, set to a value."""

    layer: int
    feature: int
    position: int
    """Index into the layer's own positions."""
    value: float


@dataclass(frozen=True, eq=False)
class Interventions:
    """Changes of nodes of one computation, each by itself."""

    network: Network
    states: Sequence[LayerState]
    target: Target
    points: int
    """Number of points at which slopes are averaged on the way to the mean; 0 is the gradient alone."""

    def to_the_mean(self, nodes: Sequence[TraceNode]) -> tuple[NodeCheck, ...]:
        """Every node set to its mean, which is 0."""
        changes = [self._change(node, 0.0) for node in nodes]
        return self._checked(nodes, changes, self._predicted(nodes, changes))

    def to_other_values(self, nodes: Sequence[TraceNode]) -> tuple[NodeCheck, ...]:
        """Every node set to `OTHER_VALUES` times its activation."""
        pairs = [(node, value) for node in nodes for value in OTHER_VALUES]
        changes = [self._change(node, value * node.activation) for node, value in pairs]
        predicted = [(value - 1) * node.effect for node, value in pairs]
        return self._checked([node for node, _ in pairs], changes, predicted)

    def through_one_section(
        self, pairs: Sequence[tuple[TraceNode, TraceNode]], weights: Sequence[float]
    ) -> tuple[EdgeCheck, ...]:
        """Edges (source, target): the source set to its mean, and the section after it run."""
        checks = []
        for (source, target), weight in zip(pairs, weights, strict=True):
            change, after = self._change(source, 0.0), self._change(target, 0.0)
            state, following = self.states[change.layer], self.states[after.layer]
            f = changed(state, change)
            moved = self.network.sections[change.layer](f[None])[0, after.position]
            cotangent = following.cotangents(torch.tensor([after.feature]))[0]
            difference = moved @ cotangent - following.features[after.position, after.feature]
            ends = {"source": source.name, "target": target.name}
            checks.append(EdgeCheck(**ends, predicted=-weight, measured=difference.item()))
        return tuple(checks)

    def _change(self, node: TraceNode, value: float) -> NodeChange:
        layer = self.network.layers.index(node.layer)
        return NodeChange(layer, node.feature, node.position - self.states[layer].first, value)

    def _predicted(self, nodes: Sequence[TraceNode], changes: Sequence[NodeChange]) -> list[float]:
        """−f̂ × slope averaged on the way to the mean."""
        if not self.points:
            return [-node.effect for node in nodes]
        slopes: dict[tuple[int, int], Tensor] = {}  # [r] by layer and position
        for layer in sorted({change.layer for change in changes}):
            positions = sorted({change.position for change in changes if change.layer == layer})
            state = self.states[layer]
            averaged = averaged_slopes(self.network, self.target, (layer, state), positions, self.points)
            rows = state.on_features(averaged)
            slopes |= {(layer, at): row for at, row in zip(positions, rows, strict=True)}
        return [
            -node.activation * slopes[change.layer, change.position][change.feature].item()
            for node, change in zip(nodes, changes, strict=True)
        ]

    def _checked(
        self, nodes: Sequence[TraceNode], changes: Sequence[NodeChange], predicted: Sequence[float]
    ) -> tuple[NodeCheck, ...]:
        measured = measure(self.network, self.states, self.target, changes)
        return tuple(
            NodeCheck(node=node.name, set_to=change.value, predicted=p, measured=m)
            for node, change, p, m in zip(nodes, changes, predicted, measured, strict=True)
        )


def strongest(nodes: Sequence[TraceNode], count: int) -> list[TraceNode]:
    """The nodes with the largest |effect|."""
    return sorted(nodes, key=lambda node: -abs(node.effect))[:count]


def spread(nodes: Sequence[TraceNode], count: int) -> list[TraceNode]:
    """Nodes at equal distances in the ranking of all by |effect|."""
    ranked = strongest(nodes, len(nodes))
    count = min(count, len(ranked))
    return [ranked[(2 * k + 1) * len(ranked) // (2 * count)] for k in range(count)]


@torch.no_grad()
def measure(
    network: Network, states: Sequence[LayerState], target: Target, changes: Sequence[NodeChange]
) -> list[float]:
    """Run the network with each change, and return the differences of the target."""
    results = [0.0] * len(changes)
    positions = states[0].first + len(states[0].f)
    for layer in sorted({change.layer for change in changes}):
        state = states[layer]
        indices = [k for k, change in enumerate(changes) if change.layer == layer]
        size = max(1, MAX_RUN_ELEMENTS // (4 * state.f.numel()))
        for start in range(0, len(indices), size):
            block = indices[start : start + size]
            f = torch.stack([state.f, *(changed(state, changes[k]) for k in block)])
            for section in network.sections[layer : target.index]:
                f = section(f)
            values = target.value(f, positions - f.shape[1])
            for k, value in zip(block, (values[1:] - values[0]).tolist(), strict=True):
                results[k] = value
    return results


def changed(state: LayerState, change: NodeChange) -> Tensor:  # [T, width]
    """f + C⁺_j (value − f̂_j) at one position; everything else stays, dropped directions too."""
    f = state.f.clone()
    if state.basis.identity:
        f[change.position, change.feature] = change.value
        return f
    step = change.value - state.features[change.position, change.feature]
    f[change.position] += state.basis.inverse[:, change.feature].to(f) * step
    return f


def agreement(predicted: Sequence[float], actual: Sequence[float]) -> CheckAgreement:
    """Rank correlation and the share of equal signs; undefined for fewer than two, or for none."""
    pairs = list(zip(predicted, actual, strict=True))
    signs = sum((p > 0) == (m > 0) for p, m in pairs) / len(pairs) if pairs else float("nan")
    varied = len(set(predicted)) > 1 and len(set(actual)) > 1
    correlation = float(spearmanr(predicted, actual).statistic) if varied else float("nan")
    return CheckAgreement(count=len(pairs), rank_correlation=correlation, sign_agreement=signs)


def check_agreement(checks: Sequence[NodeCheck] | Sequence[EdgeCheck]) -> CheckAgreement:
    """Agreement of the predictions of checks with what they measured."""
    return agreement([check.predicted for check in checks], [check.measured for check in checks])
