"""The slope D of the target in every activation, along all paths at once.

Averaged along the line from a layer's mean f̄ to its activations f, D = ∫dα ∇target(f̄ + α (f − f̄)), the
effects f̂_jt (D C⁺)_jt of all features and D · e of what was dropped add up to target(f) − target(f̄),
layer by layer. The gradient at f alone costs one walk back for all layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from interbasis.network.cores.attention import Attention
from interbasis.network.cores.attention.paths import QueryPaths
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import Rule, rule
from interbasis.traces.rows import MAX_ROW_ELEMENTS, LayerState
from interbasis.traces.targets import Target

GRADIENT = rule("gradient")


def target_slopes(
    network: Network, target: Target, states: Sequence[LayerState], points: int
) -> list[Tensor]:  # [T, width] each
    """D at every layer before the target, or with it where it is an output; ``points`` 0 is the gradient at
    f."""
    own = states[target.index]
    slope = target.row(own.f, own.first, GRADIENT)
    count = target.index + (target.basis is None)
    if points:
        return [_integrated(network, target, states[layer], layer, points) for layer in range(count)]
    slopes = [slope]
    for layer in range(target.index - 1, -1, -1):
        slopes.insert(0, slope_before(network.sections[layer], states[layer].f, slopes[0], GRADIENT))
    return slopes[:count]


def _integrated(network: Network, target: Target, state: LayerState, layer: int, points: int) -> Tensor:
    """The mean gradient between the layer's mean and its activations, by Gauss–Legendre."""
    total, mean = torch.zeros_like(state.f), state.mean
    integral = rule("quadrature", points)
    for node, weight in zip(integral.nodes, integral.weights, strict=True):
        with torch.enable_grad():
            at = (mean + node * (state.f - mean)).detach().requires_grad_()
            f = at[None]
            for section in network.sections[layer : target.index]:
                f = section(f)
            value = target.value_of(f, state.first + len(state.f) - f.shape[1]).sum()
        total += weight * torch.autograd.grad(value, at)[0]
    return total


def slope_before(section: Section, f: Tensor, slope: Tensor, rule: Rule) -> Tensor:
    """D at a section's source from D at its target; f [T, d_in], slope [S, d_out] -> [T, d_in]."""
    outputs = section.positions_out(len(f))
    back = torch.zeros_like(f)
    back[outputs] = slope @ section.skip
    inner = slope @ section.write
    if isinstance(section.core, Attention):
        return back + _through_attention(section, f, inner, rule)
    if section.core.mixes_positions:
        return back + _by_autograd(section, f, inner, rule)
    back[outputs] += section.core.pull_back(section.read_outs(f[outputs]), inner, rule) @ section.read
    return back


def _through_attention(section: Section, f: Tensor, inner: Tensor, rule: Rule) -> Tensor:
    core = section.core
    assert isinstance(core, Attention)
    shape, u = core.shape, section.read_outs(f)
    q, k, v = u.new_zeros(3, shape.heads, len(f), shape.width)
    touched = inner.ne(0).any(1).nonzero()[:, 0]  # queries that the target depends on
    start = section.positions_out(len(f)).start
    for some in touched.split(max(1, MAX_ROW_ELEMENTS // (3 * shape.heads * len(f)))):
        paths = QueryPaths.of(shape, u, inner[some], some + start, rule)
        on_values, on_keys, on_queries = paths.gradients()
        v += on_values
        k += on_keys
        q[:, some + start] += on_queries
    return torch.cat([part.transpose(0, 1).flatten(1) for part in (q, k, v)], dim=1) @ section.read


def _by_autograd(section: Section, f: Tensor, inner: Tensor, rule: Rule) -> Tensor:
    u, outputs = section.read_outs(f), section.positions_out(len(f))
    total = torch.zeros_like(u)
    for node, weight in zip(rule.nodes, rule.weights, strict=True):
        with torch.enable_grad():
            at = (node * u).detach().requires_grad_()
            output = section.core(at[None], outputs)[0]
        total += weight * torch.autograd.grad(output, at, inner)[0]
    return total @ section.read
