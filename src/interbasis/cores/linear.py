"""No core at all: the section is its skip, F(f) = P f."""

from torch import Tensor

from interbasis.cores.core import Core, Moments, Sums
from interbasis.integration import Rule


class Linear(Core):
    """The core of width 0. Every sum over it is empty, so all formulas hold as they stand."""

    has_statistics = True

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
