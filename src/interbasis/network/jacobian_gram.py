"""The Gram of a Jacobian as a product whose inner side may be smaller than the layer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.numerics.linalg import (
    eigenbasis,
    graded_root_factor,
    right_singular_basis,
    square_root_factor,
)

ROWS_AT_ONCE = 1024
"""Rows of a section's matrices that are converted to float64 at once."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Squares that a Gram is a sum of: rows in some coordinates of the layer, and their mean squares."""

    columns: slice
    rows: Tensor  # [k, columns], in any dtype
    sizes: Tensor  # [k]

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows in float64 and their sizes, some at a time."""
        for rows, sizes in zip(self.rows.split(ROWS_AT_ONCE), self.sizes.split(ROWS_AT_ONCE), strict=True):
            yield rows.double(), sizes


@dataclass(frozen=True)
class JacobianGram:
    """M′ as a product Xᵀ K X, whose inner side may be smaller than the layer. The constant is left out."""

    X: Tensor | None  # [k, w]; None is the identity
    K: Tensor  # [k, k]
    noise: Tensor | None = None  # [draws, k, k]
    """Errors of K where queries or samples were drawn, here or in layers after this one: scaled deviations of
    independent estimates from their mean, each made from its part of them in all of these layers. The
    squares of the draws add up to the variance of K."""
    terms: tuple[Terms, ...] = ()
    """Terms of M′ where X has been multiplied into K: rows Y = [ĈP; A] and the mean squares of
    the Jacobian by each of them. They are X and the diagonal of K otherwise."""

    @property
    def matrix(self) -> Tensor:  # [w, w]
        """M′."""
        return self.K if self.X is None else self.X.T @ self.K @ self.X

    def inner(self, directions: Tensor) -> Tensor:  # [r, w] -> [r, k]
        """X x for every row x."""
        return directions if self.X is None else directions @ self.X.T

    def eigenbasis(self, W: Tensor, factored: bool = False) -> tuple[Tensor, Tensor]:
        """Λ and V (rows) of M = W M′ Wᵀ, W [r, w], decomposed on the smaller side.

        ``factored`` decomposes a factor of M instead of M, which knows Λ to ε² of the largest, not to ε.
        """
        inner = self.inner(W)
        if factored:
            return right_singular_basis(graded_root_factor(self.K) @ inner.T)
        if len(self.K) < len(W):
            return right_singular_basis(square_root_factor(self.K) @ inner.T)
        return eigenbasis(inner @ self.K @ inner.T)

    def along(self, directions: Tensor) -> Tensor:  # [r, w] -> [r]
        """x M′ xᵀ for every row x."""
        inner = self.inner(directions)
        return (inner @ self.K * inner).sum(1)

    def magnitudes_along(self, directions: Tensor) -> Tensor:  # [r, w] -> [r]
        """Magnitude of x M′ xᵀ before anything cancels, Σ_i (Y x)_i² size_i.

        An entry ij of a Gram summed in rounded numbers is off by a few ε √(size_i size_j); where these errors
        are independent, x M′ xᵀ is off by as many ε times this.
        """
        return self._sum_of_squares(directions, lambda x: x)

    def products_along(self, directions: Tensor) -> Tensor:  # [r, w] -> [r]
        """Magnitude of x M′ xᵀ before anything cancels within Y x either, Σ_i (|Y| |x|)_i² size_i.

        M′ is multiplied out in float64, so that x M′ xᵀ is off by width · ε times this.
        """
        return self._sum_of_squares(directions, torch.abs)

    def _sum_of_squares(
        self, directions: Tensor, function: Callable[[Tensor], Tensor]
    ) -> Tensor:  # [r, w] -> [r]
        total = directions.new_zeros(len(directions))
        for terms in self.terms or (self._default_terms,):
            restricted = function(directions[:, terms.columns])
            for rows, sizes in terms.blocks():
                total += (restricted @ function(rows).T).square() @ sizes
        return total

    @property
    def _default_terms(self) -> Terms:
        rows = torch.eye(len(self.K), dtype=torch.float64) if self.X is None else self.X
        return Terms(slice(None), rows, self.K.diagonal())

    def deviations(self, directions: Tensor) -> Tensor | None:  # [r, w] -> [draws, r, r]
        """x δM′ yᵀ for all pairs of rows and all draws of what sampling may do to x M′ yᵀ."""
        if self.noise is None:
            return None
        inner = self.inner(directions)
        return inner @ self.noise @ inner.T
