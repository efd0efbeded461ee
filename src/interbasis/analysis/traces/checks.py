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
        return self._checked([(n, 0.0, p) for n, p in zip(nodes, self._predicted(nodes), strict=True)])

    def to_other_values(self, nodes: Sequence[TraceNode]) -> tuple[NodeCheck, ...]:
        """Every node set to `OTHER_VALUES` times its activation."""
        pairs = ((n, times) for n in nodes for times in OTHER_VALUES)
        return self._checked([(n, times * n.activation, (times - 1) * n.effect) for n, times in pairs])

    def through_one_section(
        self, edges: Sequence[tuple[TraceNode, TraceNode, float]]
    ) -> tuple[EdgeCheck, ...]:
        """Edges (source, target, weight): the source set to its mean, and the section after it run."""
        checks = []
        for source, target, weight in edges:
            (layer, _), (after, position) = self._place(source), self._place(target)
            moved = self.network.sections[layer](self._changed(source, 0.0)[None])[0, position]
            cotangent = self.states[after].cotangents(torch.tensor([target.feature]))[0]
            difference = moved @ cotangent - self.states[after].features[position, target.feature]
            ends = {"source": source.name, "target": target.name}
            checks.append(EdgeCheck(**ends, predicted=-weight, measured=difference.item()))
        return tuple(checks)

    def _place(self, node: TraceNode) -> tuple[int, int]:
        """Index of a node's layer, and of its position among the layer's own."""
        layer = self.network.layers.index(node.layer)
        return layer, node.position - self.states[layer].first

    def _changed(self, node: TraceNode, value: float) -> Tensor:  # [T, width]
        """f + C⁺_j (value − f̂_j) at one position; everything else stays, dropped directions too."""
        layer, position = self._place(node)
        state = self.states[layer]
        f, step = state.f.clone(), value - state.features[position, node.feature]
        f[position] += state.basis.directions([node.feature])[:, 0].to(f) * step
        return f

    def _predicted(self, nodes: Sequence[TraceNode]) -> list[float]:
        """−f̂ × slope averaged on the way to the mean."""
        if not self.points:
            return [-node.effect for node in nodes]
        slopes: dict[tuple[int, int], Tensor] = {}  # [r] by layer and position
        places = {self._place(node) for node in nodes}
        for layer in {layer for layer, _ in places}:
            state, positions = self.states[layer], sorted(at for other, at in places if other == layer)
            averaged = averaged_slopes(self.network, self.target, (layer, state), positions, self.points)
            slopes |= zip([(layer, at) for at in positions], state.on_features(averaged), strict=True)
        return [-node.activation * slopes[self._place(node)][node.feature].item() for node in nodes]

    @torch.no_grad()
    def _checked(self, changes: Sequence[tuple[TraceNode, float, float]]) -> tuple[NodeCheck, ...]:
        """Nodes set to values, with the change of the target that is predicted; each by itself."""
        measured: dict[int, float] = {}
        for layer, state in enumerate(self.states):
            numbers = [k for k, (node, _, _) in enumerate(changes) if node.layer == state.basis.name]
            size = max(1, MAX_RUN_ELEMENTS // (4 * state.f.numel()))
            for start in range(0, len(numbers), size):
                block = numbers[start : start + size]
                f = torch.stack([state.f, *(self._changed(*changes[k][:2]) for k in block)])
                for section in self.network.sections[layer : self.target.index]:
                    f = section(f)
                values = self.target.value(f, len(self.states[0].f) - f.shape[1])
                measured |= zip(block, (values[1:] - values[0]).tolist(), strict=True)
        return tuple(
            NodeCheck(node=node.name, set_to=value, predicted=predicted, measured=measured[k])
            for k, (node, value, predicted) in enumerate(changes)
        )


def strongest(nodes: Sequence[TraceNode], count: int) -> list[TraceNode]:
    """The nodes with the largest |effect|."""
    return sorted(nodes, key=lambda node: -abs(node.effect))[:count]


def spread(nodes: Sequence[TraceNode], count: int) -> list[TraceNode]:
    """Nodes at equal distances in the ranking of all by |effect|."""
    ranked = strongest(nodes, len(nodes))
    count = min(count, len(ranked))
    return [ranked[(2 * k + 1) * len(ranked) // (2 * count)] for k in range(count)]


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
