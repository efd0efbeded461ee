"""Σ A² of a section over its tokens from sums that are small, for cores that do not mix positions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from interbasis.base.devices import double, sums_device
from interbasis.network.cores.core import Matrices, Sums

MAX_ELEMENTS = 2**22
"""Numbers that the sums of some sequences may hold at once."""


class Squares(ABC):
    """Squares A_ij² = Σ_m K_m,ij s_mj of every token, with factors K that are the same for all tokens.

    Sums over tokens are then a few vectors [r_in]. Some columns j may have no such form: for these the sums
    are [r_out] each. All of it is in float64, in the coordinates of two bases.

    Squares of single tokens are exact, so that an estimate from sampled positions is off by their choice
    alone. With X₁ and X₂ the sums over every other one of a sequence's positions, those of neighbouring
    stretches, X₁ + X₂ is the estimate, and E (X₁ − X₂)² = Var(X₁ + X₂) + (E X₁ − E X₂)²: its error, and no
    less than that.
    """

    count: int
    """Number of terms."""
    columns: Tensor
    """The features j that have no such form, [c]."""

    def __init__(self, section: Matrices):
        self.section = section
        self.columns = torch.zeros(0, dtype=torch.long, device=sums_device(section.skip.device))

    @abstractmethod
    def factors(self) -> list[Tensor]:
        """K_m, [r_out, r_in] each."""

    @abstractmethod
    def terms(self, f: Tensor, weights: Tensor) -> Tensor:
        """Σ_t w_t s_m; f [n, T, r_in], weights [n, k, T] in float64 -> [n, k, m, r_in]."""

    def at_columns(self, f: Tensor, weights: Tensor) -> Tensor:
        """Σ_t w_t A_ij² of the other columns, [n, k, r_out, c]."""
        return weights.new_zeros(*weights.shape[:2], len(self.section.skip), 0)

    def token_sums(self, f: Tensor) -> Sums:  # [tokens, r_in]
        """Sums over tokens: ``terms`` Σ s [m, r_in], and ``whole`` Σ A² of the other columns, [r_out, c]."""
        f, weights = f[None], torch.ones(1, 1, len(f)).to(self.columns.device, torch.float64)
        return {"terms": self.terms(f, weights)[0, 0], "whole": self.at_columns(f, weights)[0, 0]}

    def sampled_sums(self, f: Tensor, weights: Tensor) -> Iterator[Sums]:  # [n, Q, r_in], [n, Q]
        """Yield `token_sums` of sampled positions, weighted by how many positions each stands for.

        Beside them are ``spread`` Σ (s₁ − s₂)(s₁ − s₂)ᵀ over sequences, [m, m, r_in], and ``whole_variance``
        [r_out, c].
        """
        weights = double(weights)
        every_other = torch.arange(f.shape[1], device=weights.device) % 2 == 0
        halves = torch.stack([weights * every_other, weights * ~every_other], dim=1)
        rows, columns = len(self.section.skip), len(self.columns)
        samples = max(1, MAX_ELEMENTS // max(1, 2 * (self.count * f.shape[2] + rows * columns)))
        for part, part_weights in zip(f.split(samples), halves.split(samples), strict=True):
            terms, whole = self.terms(part, part_weights), self.at_columns(part, part_weights)
            difference = terms[:, 0] - terms[:, 1]  # [n, m, r_in]
            yield {
                "terms": terms.sum((0, 1)),
                "whole": whole.sum((0, 1)),
                "spread": torch.einsum("nlj,nmj->lmj", difference, difference),
                "whole_variance": (whole[:, 0] - whole[:, 1]).square().sum(0),
            }

    def square(self, sums: Sums) -> Tensor:  # [r_out, r_in]
        """Σ A²."""
        total = combined(self.factors(), sums["terms"])
        return total.index_copy_(1, self.columns, sums["whole"]).clamp_min_(0)

    def variance(self, sums: Sums) -> Tensor:  # [r_out, r_in]
        """Variance of the estimate of Σ A² from sampled positions."""
        factors = self.factors()
        total = torch.zeros_like(factors[0])
        for factor, spread in zip(factors, sums["spread"], strict=True):
            total.addcmul_(factor, combined(factors, spread))
        return total.index_copy_(1, self.columns, sums["whole_variance"]).clamp_min_(0)


def combined(factors: list[Tensor], terms: Tensor) -> Tensor:  # [r_out, r_in] each, [m, r_in]
    """Σ_m K_m,ij s_mj, [r_out, r_in]."""
    total = factors[0] * terms[0]
    for factor, term in zip(factors[1:], terms[1:], strict=True):
        total.addcmul_(factor, term)
    return total


class LinearSquares(Squares):
    """A_ij = P_ij f_j."""

    count = 1

    def factors(self) -> list[Tensor]:
        return [double(self.section.skip).square()]

    def terms(self, f: Tensor, weights: Tensor) -> Tensor:
        return (weights @ double(f).square())[:, :, None]


class VarianceSquares(Squares):
    """A_ij = f_j (P_ij + B_i g_j) with g = slope · uᵀA for every token."""

    count = 3

    def __init__(self, section: Matrices, slope: float):
        super().__init__(section)
        self.slope = slope

    def factors(self) -> list[Tensor]:
        P, B = double(self.section.skip), double(self.section.write)  # [r_out, r_in], [r_out, 1]
        return [P.square(), 2 * P * B, B.square().expand_as(P)]

    def terms(self, f: Tensor, weights: Tensor) -> Tensor:
        read = self.section.read
        g, square = double(self.slope * ((f @ read.T) @ read)), double(f).square()
        return torch.stack([weights @ (square * g**m) for m in range(3)], dim=2)
