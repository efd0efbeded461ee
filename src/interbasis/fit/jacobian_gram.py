"""The Gram of a Jacobian as a product whose inner side may be smaller than the layer."""

from dataclasses import dataclass

from torch import Tensor

from interbasis.numerics.linalg import (
    eigenbasis,
    graded_root_factor,
    right_singular_basis,
    square_root_factor,
)


@dataclass(frozen=True)
class JacobianGram:
    """M′ as a product Xᵀ K X, whose inner side may be smaller than the layer. The constant is left out."""

    X: Tensor  # [k, w]
    K: Tensor  # [k, k]
    noise: Tensor | None = None  # [k, k]
    """How far K may be off where query positions were sampled, here or in layers after this one: half the
    difference of two independent estimates, each made from half of the queries in all of these layers."""
    terms: tuple[Tensor, Tensor] | None = None  # [k′, w], [k′]
    """What M′ was summed from where X has been multiplied into K: rows Y = [ĈP; A] and the mean squares of
    the Jacobian by each of them. They are X and the diagonal of K otherwise."""

    def eigenbasis(self, W: Tensor, factored: bool = False) -> tuple[Tensor, Tensor]:
        """Λ and V (rows) of M = W M′ Wᵀ, W [r, w], decomposed on the smaller side.

        ``factored`` decomposes a factor of M instead of M, which knows Λ to ε² of the largest, not to ε.
        """
        if factored:
            return right_singular_basis(graded_root_factor(self.K) @ (self.X @ W.T))
        if len(self.K) < len(W):
            return right_singular_basis(square_root_factor(self.K) @ (self.X @ W.T))
        inner = self.X @ W.T
        return eigenbasis(inner.T @ self.K @ inner)

    def along(self, directions: Tensor) -> Tensor:  # [r, w] -> [r]
        """x M′ xᵀ for every row x."""
        inner = directions @ self.X.T
        return (inner @ self.K * inner).sum(1)

    def magnitudes_along(self, directions: Tensor) -> Tensor:  # [r, w] -> [r]
        """What x M′ xᵀ is the sum of before anything cancels, Σ_i (Y x)_i² size_i.

        An entry ij of a Gram summed in rounded numbers is off by a few ε √(size_i size_j); where these errors
        are independent, x M′ xᵀ is off by as many ε times this.
        """
        rows, sizes = self.terms or (self.X, self.K.diagonal())
        return (directions @ rows.T).square() @ sizes

    def products_along(self, directions: Tensor) -> Tensor:  # [r, w] -> [r]
        """The same before anything cancels within Y x either, Σ_i (|Y| |x|)_i² size_i.

        M′ is multiplied out in float64, so that x M′ xᵀ is off by width · ε times this.
        """
        rows, sizes = self.terms or (self.X, self.K.diagonal())
        return (directions.abs() @ rows.abs().T).square() @ sizes

    def deviations(self, directions: Tensor) -> Tensor | None:  # [r, w] -> [r, r]
        """x δM′ yᵀ for all pairs of rows; each is one draw from what sampling may do to x M′ yᵀ."""
        if self.noise is None:
            return None
        inner = directions @ self.X.T
        return inner @ self.noise @ inner.T
