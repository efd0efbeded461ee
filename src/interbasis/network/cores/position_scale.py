"""Constants of single positions: learned positions that are added inside a network, and rotary turns."""

from typing import Any

import torch
from torch import Tensor

from interbasis.network.cores.core import Counted, Moments, PassCore, Sums
from interbasis.numerics.integration import Rule


class PositionScale(PassCore):
    """core(u)_s = a_s ∘ u_s, for inputs of T positions.

    Reading the constant, it puts out a table of positions; reading x, and x with its coordinates exchanged,
    it puts out the two parts of a turned x, a being cosines and sines. The Jacobian does not depend on u:

        Σ N_ss = n diag(Σ_s a_s),    Σ NᵀQN = Q ∘ n Σ_s a_s a_sᵀ.

    It mixes no positions, but has to know them, as cores that do.

    Args:
        scale: a.
    """

    mixes_positions = True

    def __init__(self, scale: Tensor):  # [T, c]
        self.scale = scale

    def __repr__(self) -> str:
        return f"PositionScale({len(self.scale)} positions)"

    def to(self, *args: Any, **kwargs: Any) -> "PositionScale":
        return PositionScale(self.scale.to(*args, **kwargs))

    def tensors(self) -> list[Tensor]:
        return [self.scale]

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        return u[:, outputs] * self.scale[outputs].to(u)

    def batch_sums(
        self, u: Tensor, outputs: slice, metric: Tensor, signs: Tensor | None, counted: Counted | None = None
    ) -> Sums:
        """Compute exact sums, whatever the signs."""
        count = u.new_full((u.shape[1],), len(u))
        if counted is not None:
            count = (counted.inputs * counted.outputs).sum(0).to(u)
        scale, count = self.scale[outputs].to(u), count[outputs]
        return {"local": torch.diag(count @ scale), "gram": metric.to(u) * ((scale.T * count) @ scale)}

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return Moments(**sums)

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        scaled = self.scale[outputs].to(f).T[:, None, :, None] * f[:, outputs]  # [c, n, S, r]
        return scaled.flatten(1, 2) * read[:, None]
