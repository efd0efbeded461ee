"""core(u) = act(u) − act(0), a function applied to every coordinate by itself."""

from abc import abstractmethod
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from interbasis.network.cores.activations import bare, fused
from interbasis.network.cores.core import Moments, StatisticsCore, Sums, into_groups
from interbasis.network.cores.slope_moments import SlopeMoments, slope_sums
from interbasis.numerics.integration import Rule, rule

THREE_NODES = rule("quadrature", 3)


class ActivationCore(StatisticsCore):
    """A core made of one activation function, whose Jacobian is diagonals side by side, [diag(d₁) | …]."""

    def __init__(self, activation: nn.Module):
        self.activation = fused(bare(activation))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.activation})"

    def to(self, *args: Any, **kwargs: Any) -> "ActivationCore":
        return type(self)(deepcopy(self.activation).to(*args, **kwargs))

    def tensors(self) -> list[Tensor]:
        return list(self.activation.state_dict().values())

    @abstractmethod
    def slopes(self, u: Tensor) -> Tensor:
        """d = [d₁ | …] at u, same shape."""

    @abstractmethod
    def mean_slopes(self, u: Tensor, integral: Rule) -> Tensor:
        """d averaged along the line from 0 to u, same shape."""

    @abstractmethod
    def joined(self, products: Tensor, dim: int) -> Tensor:
        """Sum what belongs to d₁, d₂, …, side by side in dimension ``dim``."""

    def mean_by_nodes(self, u: Tensor, integral: Rule) -> Tensor:
        """`mean_slopes` from the nodes of a rule."""
        nodes = zip(integral.nodes, integral.weights, strict=True)
        return torch.stack([weight * self.slopes(node * u) for node, weight in nodes]).sum(0)

    def activation_slope(self, u: Tensor) -> Tensor:
        """act′(u), same shape."""
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            return torch.autograd.grad(self.activation(u).sum(), u)[0]

    def statistics(self, u: Tensor, outputs: slice) -> Sums:
        return slope_sums(self.slopes(u[:, outputs]).flatten(0, 1))

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return SlopeMoments(sums, metric)

    def signed_attributions(
        self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule, signs: Tensor
    ) -> Tensor:
        """A group costs one product S = Σ φ d f̂ᵀ, then S ∘ A, whose parts are added."""
        d, f = self._tokens(u, f, outputs, rule)
        d, f = into_groups(d, signs.shape[1]), into_groups(f, signs.shape[1])  # [groups, g, ·]
        signed = (d[:, :, None, :] * signs[..., None]).flatten(2)  # [groups, g, R·c_in]
        sums = torch.bmm(signed.mT, f).unflatten(1, (signs.shape[2], -1))  # [groups, R, c_in, r]
        return self.joined(sums * read, 2).permute(2, 0, 1, 3).flatten(1, 2)

    def pull_back(self, u: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        return self.mean_slopes(u, rule)[:, None] * cotangents.tile(u.shape[-1] // cotangents.shape[-1])

    def push_forward(self, u: Tensor, tangents: Tensor, rule: Rule) -> Tensor:
        return self.joined(self.mean_slopes(u, rule)[:, None] * tangents, -1)

    def _tokens(self, u: Tensor, f: Tensor, outputs: slice, rule: Rule) -> tuple[Tensor, Tensor]:
        return self.mean_slopes(u[:, outputs], rule).flatten(0, 1), f[:, outputs].flatten(0, 1)


class Elementwise(ActivationCore):
    """An activation function. N_ss = diag(d) with d = act′(u), and positions do not mix, hence

        Σ N = diag(Σ d),    Σ NᵀQN = Q ∘ Σ d dᵀ,

    so Σ d dᵀ is a sufficient statistic for every Q. The integral along a straight line is a secant slope,
    ∫₀¹ act′(αu) dα = (act(u) − act(0)) / u, so exact integrated gradients cost what a gradient costs.

    A constant act(0) ≠ 0 is the section's to fold into the constant's column. Coordinates may have
    functions of their own (`per_feature.py`).
    """

    def at_zero(self, like: Tensor) -> Tensor:  # [], or [m] where coordinates have functions of their own
        return self.activation(like.new_zeros(()))

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        activated = self.activation(u[:, outputs])
        return activated - self.at_zero(u) if self._moves_zero else activated

    @cached_property
    def _moves_zero(self) -> bool:
        """Whether act(0) ≠ 0, or is not known."""
        like = next((tensor for tensor in self.tensors() if tensor.is_floating_point()), torch.zeros(()))
        return like.is_meta or bool(self.at_zero(like).any())

    slopes = ActivationCore.activation_slope

    def mean_slopes(self, u: Tensor, integral: Rule) -> Tensor:
        if not integral.closed_form:
            return self.mean_by_nodes(u, integral)
        zero = self.at_zero(u)
        near = u.abs() < torch.finfo(u.dtype).tiny
        secant = (self.activation(u) - zero) / torch.where(near, 1.0, u)
        if zero.any():
            secant = more_exact(self.mean_by_nodes(u, THREE_NODES), secant, zero / u)
        return torch.where(near & (zero == 0), self.slopes(0 * zero), secant)

    def joined(self, products: Tensor, dim: int) -> Tensor:
        return products

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        d, f = self._tokens(u, f, outputs, rule)
        return d.T[:, :, None] * f * read[:, None, :]


def more_exact(few: Tensor, difference: Tensor, cancelled: Tensor) -> Tensor:
    """The better of two values of a mean slope along a line from 0 where act(0) ≠ 0.

    A difference of values divided by u loses the digits that act(0) has, ε act(0) / u; Gauss–Legendre with a
    few nodes loses none, but is right only near 0 and where no kink is in the way. Where the two agree as far
    as the difference is known, the nodes know more.
    """
    known = 8 * torch.finfo(few.dtype).eps * cancelled.abs()  # infinite at 0
    return torch.where((few - difference).abs() <= known, few, difference)
