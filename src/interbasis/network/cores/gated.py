"""core(g, w) = act(g) ∘ w: the hidden layer of a gated MLP (SwiGLU, GeGLU, ReGLU)."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from interbasis.network.cores.activations import bare, fused
from interbasis.network.cores.core import Moments, StatisticsCore, Sums, into_groups
from interbasis.network.cores.elementwise import Elementwise, more_exact
from interbasis.network.cores.slope_moments import SlopeMoments, slope_sums
from interbasis.network.cores.straight_line import StraightLine
from interbasis.numerics.integration import Rule, rule

FOUR_NODES = rule("quadrature", 4)


class Gated(StatisticsCore):
    """The read-outs are [g | w], each m wide. N = [diag(d₁) | diag(d₂)], d₁ = act′(g) w, d₂ = act(g),

        Σ N = [diag Σd₁ | diag Σd₂],    Σ NᵀQN = blocks Q ∘ Σ d_a d_bᵀ,   a, b ∈ {1, 2},

    and the stacked outer product Σ d dᵀ, d = [d₁ | d₂], is a sufficient statistic for every Q. Along the line
    from 0 the two slopes are w ∫α act′(αg) dα and ∫act(αg) dα, integrals of one function of g each, which
    `StraightLine` tabulates to rounding. Integrated by parts, g ∫α act′(αg) dα + ∫act(αg) dα = act(g), so
    that attributions add up.
    """

    def __init__(self, activation: nn.Module):
        self.activation = fused(bare(activation))
        self.straight_line = StraightLine(self.activation)

    def __repr__(self) -> str:
        return f"Gated({self.activation})"

    def to(self, *args: Any, **kwargs: Any) -> "Gated":
        return Gated(deepcopy(self.activation).to(*args, **kwargs))

    def tensors(self) -> list[Tensor]:
        return list(self.activation.state_dict().values())

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:  # [n, T, 2m] -> [n, S, m]
        g, w = u[:, outputs].chunk(2, dim=-1)
        return self.activation(g) * w

    def slopes(self, u: Tensor) -> Tensor:
        """d = [d₁ | d₂], same shape as u."""
        g, w = u.chunk(2, dim=-1)
        return torch.cat([Elementwise(self.activation).slope(g) * w, self.activation(g)], dim=-1)

    def mean_slopes(self, u: Tensor, integral: Rule) -> Tensor:
        """d = [d₁ | d₂], averaged along the line from 0 to u."""
        if not integral.closed_form:
            nodes = zip(integral.nodes, integral.weights, strict=True)
            return torch.stack([weight * self.slopes(node * u) for node, weight in nodes]).sum(0)
        g, w = u.chunk(2, dim=-1)
        level, gate = self.straight_line.means(g)
        zero = self.activation(g.new_zeros(()))
        if zero != 0:
            few = self.mean_slopes(torch.cat([g, torch.ones_like(g)], dim=-1), FOUR_NODES).chunk(2, dim=-1)[0]
            gate = more_exact(few, gate, zero / g)
        else:
            near = g.abs() < torch.finfo(g.dtype).tiny
            gate = torch.where(near, Elementwise(self.activation).slope(zero) / 2, gate)
        return torch.cat([gate * w, level], dim=-1)

    def statistics(self, u: Tensor, outputs: slice) -> Sums:
        d = self.slopes(u[:, outputs]).flatten(0, 1)  # [tokens, 2m]
        return slope_sums(d)

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return SlopeMoments(sums, metric)

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        d, f = self._tokens(u, f, outputs, rule)
        gate, value = (d.T[:, :, None] * read[:, None, :]).chunk(2)  # [m, tokens, r] each
        return (gate + value) * f

    def signed_attributions(
        self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule, signs: Tensor
    ) -> Tensor:
        """A group costs one product S = Σ φ d f̂ᵀ, then S ∘ A with its two halves added."""
        d, f = self._tokens(u, f, outputs, rule)
        d, f = into_groups(d, signs.shape[1]), into_groups(f, signs.shape[1])  # [groups, g, ·]
        signed = (d[:, :, None, :] * signs[..., None]).flatten(2)  # [groups, g, R·2m]
        sums = torch.bmm(signed.mT, f).unflatten(1, (signs.shape[2], -1))  # [groups, R, 2m, r]
        gate, value = (sums * read).chunk(2, dim=2)
        return (gate + value).permute(2, 0, 1, 3).flatten(1, 2)

    def pull_back(self, u: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        return self.mean_slopes(u, rule)[:, None] * cotangents.tile(2)

    def push_forward(self, u: Tensor, tangents: Tensor, rule: Rule) -> Tensor:
        gate, value = (self.mean_slopes(u, rule)[:, None] * tangents).chunk(2, dim=-1)
        return gate + value

    def _tokens(self, u: Tensor, f: Tensor, outputs: slice, rule: Rule) -> tuple[Tensor, Tensor]:
        return self.mean_slopes(u[:, outputs], rule).flatten(0, 1), f[:, outputs].flatten(0, 1)
