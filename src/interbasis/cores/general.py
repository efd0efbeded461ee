"""Any other differentiable map, answered by automatic differentiation."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from interbasis import autograd
from interbasis.cores.core import Core, Moments
from interbasis.integration import Rule


class General(Core):
    """A core that is only known as a function [n, T, c_in] → [n, S, c_out] with function(0) = 0.

    Exact sums take one backward pass per output coordinate and output position; stochastic sources over
    the positions, Σ_s ≈ (1/R) Σ_r (Σ_s φ_rs ·)², take R passes per output coordinate instead.
    """

    def __init__(self, function: nn.Module | Callable[[Tensor], Tensor], name: str = "general"):
        self.function = function
        self.name = name

    def __repr__(self) -> str:
        return f"General({self.name})"

    def to(self, *args: Any, **kwargs: Any) -> "General":
        if not isinstance(self.function, nn.Module):
            return self
        return General(deepcopy(self.function).to(*args, **kwargs), self.name)

    def __call__(self, u: Tensor, outputs: int) -> Tensor:
        return self.function(u)[:, -outputs:]

    def batch_moments(self, u: Tensor, outputs: int, metric: Tensor, signs: Tensor | None) -> Moments:
        return Moments(*autograd.moments(lambda u: self(u, outputs), u, metric, signs))

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: int, rule: Rule) -> Tensor:
        return autograd.attributions(lambda u: self(u, outputs), u, f, read, rule)

    def signed_attributions(
        self, u: Tensor, f: Tensor, read: Tensor, outputs: int, rule: Rule, signs: Tensor
    ) -> Tensor:
        """Where a group is one sample's positions, the signs go into R backward passes per coordinate."""
        if signs.shape[:2] != (u.shape[0], outputs):
            return super().signed_attributions(u, f, read, outputs, rule, signs)
        return autograd.attributions(lambda u: self(u, outputs), u, f, read, rule, signs)
