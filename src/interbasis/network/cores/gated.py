"""core(g, w) = act(g) ∘ w: the hidden layer of a gated MLP (SwiGLU, GeGLU, ReGLU)."""

from typing import Any

import torch
from torch import Tensor, nn

from interbasis.network.cores.elementwise import ActivationCore, more_exact
from interbasis.network.cores.straight_line import StraightLine
from interbasis.numerics.integration import Rule, rule

FOUR_NODES = rule("quadrature", 4)


class Gated(ActivationCore):
    """The read-outs are [g | w], each m wide. N = [diag(d₁) | diag(d₂)], d₁ = act′(g) w, d₂ = act(g),

        Σ N = [diag Σd₁ | diag Σd₂],    Σ NᵀQN = blocks Q ∘ Σ d_a d_bᵀ,   a, b ∈ {1, 2},

    and the stacked outer product Σ d dᵀ, d = [d₁ | d₂], is a sufficient statistic for every Q. Along the line
    from 0 the two slopes are w ∫α act′(αg) dα and ∫act(αg) dα, integrals of one function of g each, which
    `StraightLine` tabulates to rounding. Integrated by parts, g ∫α act′(αg) dα + ∫act(αg) dα = act(g), so
    that attributions add up.
    """

    def __init__(self, activation: nn.Module):
        super().__init__(activation)
        self.straight_line = StraightLine(self.activation)

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:  # [n, T, 2m] -> [n, S, m]
        g, w = u[:, outputs].chunk(2, dim=-1)
        return self.activation(g) * w

    def slopes(self, u: Tensor) -> Tensor:
        g, w = u.chunk(2, dim=-1)
        return torch.cat([self.activation_slope(g) * w, self.activation(g)], dim=-1)

    def mean_slopes(self, u: Tensor, integral: Rule) -> Tensor:
        if not integral.closed_form:
            return self.mean_by_nodes(u, integral)
        g, w = u.chunk(2, dim=-1)
        level, gate = self.straight_line.means(g)
        zero = self.activation(g.new_zeros(()))
        if zero != 0:
            few = self.mean_by_nodes(torch.cat([g, torch.ones_like(g)], dim=-1), FOUR_NODES)
            gate = more_exact(few.chunk(2, dim=-1)[0], gate, zero / g)
        else:
            near = g.abs() < torch.finfo(g.dtype).tiny
            gate = torch.where(near, self.activation_slope(zero) / 2, gate)
        return torch.cat([gate * w, level], dim=-1)

    def joined(self, products: Tensor, dim: int) -> Tensor:
        gate, value = products.chunk(2, dim)
        return gate + value

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        d, f = self._tokens(u, f, outputs, rule)
        return self.joined(d.T[:, :, None] * read[:, None, :], 0) * f


class ClampedGated(Gated):
    """act(g) (w + 1) with act(g) = g sigmoid(αg), g at most a limit and w between ± the limit (gpt-oss)."""

    def __init__(self, alpha: float, limit: float):
        super().__init__(ClampedSwish(alpha, limit))
        self.alpha, self.limit = alpha, limit

    def to(self, *args: Any, **kwargs: Any) -> "ClampedGated":
        return self

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        g, w = u[:, outputs].chunk(2, dim=-1)
        return self.activation(g) * (w.clamp(-self.limit, self.limit) + 1)

    def slopes(self, u: Tensor) -> Tensor:
        g, w = u.chunk(2, dim=-1)
        inside = (w.abs() <= self.limit).to(w)
        values = w.clamp(-self.limit, self.limit) + 1
        return torch.cat([self.activation_slope(g) * values, self.activation(g) * inside], dim=-1)

    def mean_slopes(self, u: Tensor, integral: Rule) -> Tensor:
        return self.mean_by_nodes(u, integral)


class ClampedSwish(nn.Module):
    """min(g, limit) sigmoid(α min(g, limit))."""

    def __init__(self, alpha: float, limit: float):
        super().__init__()
        self.alpha, self.limit = alpha, limit

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:.6g}, limit={self.limit:.6g}"

    def forward(self, g: Tensor) -> Tensor:
        g = g.clamp(max=self.limit)
        return g * (self.alpha * g).sigmoid()
