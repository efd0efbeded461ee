"""Checks of a trace's predictions: features are set to a value, and the sections after them run.

Which nodes are checked is decided by their effect alone: the strongest have the largest |effect|, and as many
others are taken at equal distances from the ranking of all nodes by |effect|, so that ranks are compared over
effects of all sizes. What setting a feature to its mean does is predicted by the slope of the target averaged
on the way to the mean, what other values do by the gradient.

D is the slope of the target in the activations of a layer, along all paths at once. The gradient at the
activations costs one walk back for all layers and positions; f̂_jt (D C⁺)_jt is the effect of a feature,
exact for small changes. For a change as large as setting a feature to its mean the slope at a position t is
averaged along the line from the layer's mean f̄ to the activation f_t while all other positions stay as they
are, D_t = ∫dα ∇_t target(f̄ + α (f_t − f̄)). Then f̂_jt (D C⁺)_jt over all features and D_t · e_t for what
was dropped add up to what the target loses when the position is set to the mean; one integral serves all
features of a position.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from interbasis.analysis.traces.records import CheckAgreement, EdgeCheck, NodeCheck, TraceNode
from interbasis.analysis.traces.rows import MAX_ROW_ELEMENTS, LayerState
from interbasis.analysis.traces.targets import Target
from interbasis.network.network import Network
from interbasis.numerics.integration import rule

GRADIENT = rule("gradient")
MAX_HELD_POSITIONS = 256
"""Positions up to which everything that a backward pass needs is held, patterns of all pairs included."""


def target_gradients(
    network: Network, target: Target, states: Sequence[LayerState]
) -> Iterator[tuple[int, Tensor]]:  # [T, width] each
    """(layer, D at its activations) of the target's layer, then of those before it."""
    state = states[target.index]
    slope = target.row(state.f, GRADIENT)
    yield target.index, slope
    for layer in range(target.index - 1, -1, -1):
        with torch.enable_grad():
            f = states[layer].f.detach().requires_grad_()
            output = network.sections[layer](f[None])[0]
        (slope,) = torch.autograd.grad(output, f, slope)
        yield layer, slope


def averaged_slopes(
    network: Network, target: Target, where: tuple[int, LayerState], positions: Sequence[int], points: int
) -> Tensor:  # [positions, width]
    """D averaged between a layer's mean and its activation at each of some positions, by Gauss–Legendre."""
    layer, state = where
    total, integral = torch.zeros_like(state.f), rule("quadrature", points)
    for block in torch.tensor(positions).split(max(1, MAX_ROW_ELEMENTS // (16 * state.f.numel()))):
        here = torch.arange(len(block))
        away = state.f[block] - state.mean
        for node, weight in zip(integral.nodes, integral.weights, strict=True):
            at = state.f.repeat(len(block), 1, 1)  # [k, T, width], one position changed in each
            at[here, block] -= (1 - node) * away
            with torch.enable_grad():
                at = at.detach().requires_grad_()
                f = at
                for section in network.sections[layer : target.index]:
                    # of many positions only the inputs of a section are held for the way back
                    held = f.shape[1] <= MAX_HELD_POSITIONS
                    f = section(f) if held else checkpoint(section, f, use_reentrant=False)
                value = target.value(f).sum()
            total[block] += weight * torch.autograd.grad(value, at)[0][here, block]
    return total[positions]


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
                values = self.target.value(f)
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
