"""No core at all: the section is its skip, F(f) = P f."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.network.cores.core import Core, Moments, Sums
from interbasis.numerics.integration import Rule

if TYPE_CHECKING:
    from interbasis.network.network import Section


class Linear(Core):
    """The core of width 0. Every sum over it is empty, so all formulas hold as they stand."""

    has_statistics = True
    has_squares = True

    def __repr__(self) -> str:
        return "Linear()"

    def __call__(self, u: Tensor, at: slice) -> Tensor:
        return u[:, at, :0]

    def statistics(self, u: Tensor, at: slice) -> Sums:
        return {}

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return Moments(metric, metric)  # both [0, 0]

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, at: slice, rule: Rule) -> Tensor:
        return f.new_zeros(0, f[:, at].shape[:2].numel(), f.shape[2])

    def squared_attributions(self, section: "Section", f: Tensor, rule: Rule) -> Tensor:
        """A_ij = P_ij f_j."""
        squares = f[:, section.outputs(f)].square().sum((0, 1), dtype=torch.float64)
        return section.skip.square() * squares
