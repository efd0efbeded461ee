"""core(u) = mean square of u: the variance that a layer norm divides by."""

from torch import Tensor

from interbasis.base.devices import double_sum
from interbasis.network.cores.core import ClosedFormSquares, Matrices, Moments, StatisticsCore, Sums
from interbasis.network.cores.squares import Squares, VarianceSquares
from interbasis.numerics.integration import Rule
from interbasis.numerics.linalg import symmetric_product


class Variance(StatisticsCore, ClosedFormSquares):
    """v = |u|²/d, where u = Hx was centred by the section's read (layer norm) or not (RMS norm).

    N = (2/d) uᵀ and positions do not mix, hence with Q a single number q

        Σ N = (2/d) Σ uᵀ,    Σ NᵀQN = q (4/d²) Σ u uᵀ,

    and the Jacobian averaged along the line from 0 is uᵀ/d.
    """

    def __init__(self, width: int):
        self.width = width

    def __repr__(self) -> str:
        return f"Variance({self.width})"

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:  # [n, T, d] -> [n, S, 1]
        return u[:, outputs].square().mean(-1, keepdim=True)

    def statistics(self, u: Tensor, outputs: slice) -> Sums:
        u = u[:, outputs].flatten(0, 1)
        return {"sum": double_sum(u, 0), "products": symmetric_product(u)}

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        return Moments(2 / self.width * sums["sum"][None], 4 / self.width**2 * metric * sums["products"])

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        u, f = u[:, outputs].flatten(0, 1), f[:, outputs].flatten(0, 1)
        return (self._slope(rule) * (u @ read) * f)[None]

    def pull_back(self, u: Tensor, cotangents: Tensor, rule: Rule) -> Tensor:
        return self._slope(rule) * u[:, None] * cotangents

    def push_forward(self, u: Tensor, tangents: Tensor, rule: Rule) -> Tensor:
        return self._slope(rule) * tangents @ u[..., None]

    def squares(self, section: Matrices, rule: Rule) -> Squares:
        return VarianceSquares(section, self._slope(rule))

    def _slope(self, rule: Rule) -> float:
        """N̄ = slope · uᵀ; the integrand is linear in α, so a rule that integrates α exactly gives 1/d."""
        return 2 / self.width * sum(a * w for a, w in zip(rule.nodes, rule.weights, strict=True))
