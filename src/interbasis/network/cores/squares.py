"""Σ A² of a section over its tokens from sums that are small, for cores that do not mix positions."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.base.devices import double, sums_device

if TYPE_CHECKING:
    from interbasis.network.network import Section


class Squares(ABC):
    """Squares A_ij² = Σ_m K_m,ij s_mj of every token, with factors K that are the same for all tokens.

    Sums over tokens are then a few vectors [r_in]. Some columns j may have no such form: for these the sums
    are [r_out] each. All of it is in float64, in the coordinates of two bases.
    """

    count: int
    """Number of terms."""
    columns: Tensor
    """The features j that have no such form, [c]."""

    def __init__(self, section: "Section"):
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

    def __init__(self, section: "Section", slope: float):
        super().__init__(section)
        self.slope = slope

    def factors(self) -> list[Tensor]:
        P, B = double(self.section.skip), double(self.section.write)  # [r_out, r_in], [r_out, 1]
        return [P.square(), 2 * P * B, B.square().expand_as(P)]

    def terms(self, f: Tensor, weights: Tensor) -> Tensor:
        read = self.section.read
        g, square = double(self.slope * ((f @ read.T) @ read)), double(f).square()
        return torch.stack([weights @ (square * g**m) for m in range(3)], dim=2)
