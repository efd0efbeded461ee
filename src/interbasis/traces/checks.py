"""What a trace predicts, beside what is measured: features are set to a value, and the rest of the network
run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import spearmanr
from torch import Tensor

from interbasis.network.network import Network
from interbasis.traces.records import Agreement
from interbasis.traces.rows import LayerState
from interbasis.traces.targets import Target

MAX_RUN_ELEMENTS = 2**23
"""Activations that are run at once."""


@dataclass(frozen=True)
class Change:
    """A feature at a position of a layer, set to a value."""

    layer: int
    feature: int
    position: int
    """Index into the layer's own positions."""
    value: float


@torch.no_grad()
def measured(
    network: Network, states: Sequence[LayerState], target: Target, changes: Sequence[Change]
) -> list[float]:
    """How much the target changes with each of them."""
    results = [0.0] * len(changes)
    positions = states[0].first + len(states[0].f)
    for layer in sorted({change.layer for change in changes}):
        state = states[layer]
        own = [k for k, change in enumerate(changes) if change.layer == layer]
        size = max(1, MAX_RUN_ELEMENTS // (4 * state.f.numel()))
        for start in range(0, len(own), size):
            some = own[start : start + size]
            f = torch.stack([state.f, *(changed(state, changes[k]) for k in some)])
            for section in network.sections[layer : target.index]:
                f = section(f)
            values = target.value_of(f, positions - f.shape[1])
            for k, value in zip(some, (values[1:] - values[0]).tolist(), strict=True):
                results[k] = value
    return results


def changed(state: LayerState, change: Change) -> Tensor:  # [T, width]
    """f + C⁺_j (value − f̂_j) at one position; everything else stays, dropped directions too."""
    f = state.f.clone()
    if state.basis.identity:
        f[change.position, change.feature] = change.value
        return f
    step = change.value - state.features[change.position, change.feature]
    f[change.position] += state.basis.inverse[:, change.feature].to(f) * step
    return f


def agreement(predicted: Sequence[float], actual: Sequence[float]) -> Agreement:
    """Rank correlation and the share of equal signs; undefined for fewer than two, or for none."""
    pairs = list(zip(predicted, actual, strict=True))
    signs = sum((p > 0) == (m > 0) for p, m in pairs) / len(pairs) if pairs else float("nan")
    varied = len(set(predicted)) > 1 and len(set(actual)) > 1
    correlation = float(spearmanr(predicted, actual).statistic) if varied else float("nan")
    return Agreement(count=len(pairs), rank_correlation=correlation, sign_agreement=signs)
