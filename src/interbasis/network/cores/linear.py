"""No core at all: the section is its skip, F(f) = P f."""

from torch import Tensor

from interbasis.network.cores.core import ClosedFormSquares, Matrices, Moments, StatisticsCore, Sums
from interbasis.network.cores.squares import LinearSquares, Squares
from interbasis.numerics.integration import Rule


class Linear(StatisticsCore, ClosedFormSquares):
    """The core of width 0. Every sum over it is empty, so all formulas hold as they stand."""

    def __repr__(self) -> str:
        return "Linear()"

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        return u[:, outputs, :0]

    def statistics(self, u: Tensor, outputs: slice) -> Sums:
        return {}

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return Moments(metric, metric)  # both [0, 0]

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        return f.new_zeros(0, f[:, outputs].shape[:2].numel(), f.shape[2])

    def pull_back(self, u: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        return u[:, None].expand(-1, cotangents.shape[1], -1)  # [tokens, k, 0]

    def push_forward(self, u: Tensor, tangents: Tensor, rule: Rule) -> Tensor:
        return tangents  # [tokens, M, 0]

    def squares(self, section: Matrices, rule: Rule) -> Squares:
        return LinearSquares(section)
