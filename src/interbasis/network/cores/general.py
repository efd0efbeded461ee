"""Any other differentiable map, answered by automatic differentiation."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from interbasis.network.cores.core import Counted, Moments, PassCore, Sums
from interbasis.numerics import autograd
from interbasis.numerics.integration import Rule


class General(PassCore):
    """A core that is only known as a function [n, T, c_in] → [n, T, c_out] with function(0) = 0.

    Exact sums take one backward pass per output coordinate and output position; stochastic sources over
    the positions, Σ_s ≈ (1/R) Σ_r (Σ_s φ_rs ·)², take R passes per output coordinate instead.

    Args:
        function: The map; a module goes to other dtypes and devices with its section.
        name: What people read in tables and messages.
        mixes_positions: Whether an output position depends on other positions than its own.
    """

    def __init__(
        self,
        function: nn.Module | Callable[[Tensor], Tensor],
        name: str = "general",
        mixes_positions: bool = True,
    ):
        self.function = function
        self.name = name
        self.mixes_positions = mixes_positions

    def __repr__(self) -> str:
        return f"General({self.name})"

    def to(self, *args: Any, **kwargs: Any) -> "General":
        if not isinstance(self.function, nn.Module):
            return self
        return General(deepcopy(self.function).to(*args, **kwargs), self.name, self.mixes_positions)

    def tensors(self) -> list[Tensor]:
        return list(self.function.state_dict().values()) if isinstance(self.function, nn.Module) else []

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        return self.function(u)[:, outputs]

    def at_zero(self, like: Tensor) -> Tensor:
        known = getattr(self.function, "at_zero", None)
        return like.new_zeros(()) if known is None else known(like)

    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None = None
    ) -> Sums:
        if not self.mixes_positions:  # every token by itself: one backward pass per coordinate does for all
            u, outputs, signs = u[:, outputs].flatten(0, 1)[:, None], slice(0, 1), None
        weights = None if counted is None else (counted.inputs, counted.outputs[:, outputs])
        local, gram = autograd.moments(lambda u: self(u, outputs), outputs, u, metric, signs, weights)
        return {"local": local, "gram": gram}

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return Moments(**sums)

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        if not self.mixes_positions:
            u, f = (x[:, outputs].flatten(0, 1)[:, None] for x in (u, f))
            outputs = slice(0, 1)
        return autograd.attributions(lambda u: self(u, outputs), u, f, read, rule)

    def signed_attributions(
        self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule, signs: Tensor
    ) -> Tensor:
        """Compute signed sums: R backward passes per coordinate where a group is one sample's positions."""
        if not self.mixes_positions or signs.shape[:2] != u[:, outputs].shape[:2]:
            return super().signed_attributions(u, f, read, outputs, rule, signs)
        return autograd.attributions(lambda u: self(u, outputs), u, f, read, rule, signs)
