"""The slope D of the target in the activations of a layer, along all paths at once.

The gradient at the activations costs one walk back for all layers and positions; f̂_jt (D C⁺)_jt is the
effect of a feature, exact for small changes. For a change as large as setting a feature to its mean the slope
at a position t is averaged along the line from the layer's mean f̄ to the activation f_t while all other
positions stay as they are, D_t = ∫dα ∇_t target(f̄ + α (f_t − f̄)). Then f̂_jt (D C⁺)_jt over all features and
D_t · e_t for what was dropped add up to what the target loses when the position is set to the mean; one
integral serves all features of a position.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

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
    slope = target.row(state.f, state.first, GRADIENT)
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
    first = state.first + len(state.f)
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
                value = target.value(f, first - f.shape[1]).sum()
            total[block] += weight * torch.autograd.grad(value, at)[0][here, block]
    return total[positions]
