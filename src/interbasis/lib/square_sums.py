"""Σ A² of a section in closed form, over all tokens or over some positions of every sequence.

Squares of single tokens are exact, so that an estimate from some positions is off by their choice alone. With
X₁ and X₂ what every other one of a sequence's positions adds, those of neighbouring stretches, X₁ + X₂ is the
estimate, and E (X₁ − X₂)² = Var(X₁ + X₂) + (E X₁ − E X₂)²: its error, and no less than that.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.devices import double
from interbasis.network.cores.squares import Squares, combined

MAX_ELEMENTS = 2**22
"""Numbers that the sums of some sequences may hold at once."""


@dataclass
class SquareSums:
    """Small sums over data that Σ A² and its variance follow from (`network/cores/squares.py`)."""

    squares: Squares
    terms: Tensor  # Σ s, [m, r_in]
    whole: Tensor  # Σ A² of the columns that have no terms, [r_out, c]
    spread: Tensor  # Σ over sequences of (s₁ − s₂)(s₁ − s₂)ᵀ, [m, m, r_in]
    whole_variance: Tensor  # [r_out, c]

    @classmethod
    def zero(cls, squares: Squares) -> "SquareSums":
        m, (r_out, r_in), columns = squares.count, squares.section.skip.shape, squares.columns
        shapes = (m, r_in), (r_out, len(columns)), (m, m, r_in), (r_out, len(columns))
        zeros = [torch.zeros(shape, dtype=torch.float64, device=columns.device) for shape in shapes]
        return cls(squares, *zeros)

    def add(self, f: Tensor) -> None:  # [tokens, r_in]
        """Tokens that all count."""
        f, weights = f[None], torch.ones(1, 1, len(f)).to(self.terms)
        self.terms += self.squares.terms(f, weights)[0, 0]
        self.whole += self.squares.at_columns(f, weights)[0, 0]

    def add_sampled(self, f: Tensor, weights: Tensor) -> None:  # [n, Q, r_in], [n, Q]
        """Some positions of every sequence, and how many each of them stands for."""
        weights = double(weights)
        every_other = torch.arange(f.shape[1], device=weights.device) % 2 == 0
        halves = torch.stack([weights * every_other, weights * ~every_other], dim=1)
        samples = max(1, MAX_ELEMENTS // max(1, 2 * (self.terms.numel() + self.whole.numel())))
        for some, their in zip(f.split(samples), halves.split(samples), strict=True):
            terms, whole = self.squares.terms(some, their), self.squares.at_columns(some, their)
            self.terms += terms.sum((0, 1))
            self.whole += whole.sum((0, 1))
            difference = terms[:, 0] - terms[:, 1]  # [n, m, r_in]
            self.spread += torch.einsum("nlj,nmj->lmj", difference, difference)
            self.whole_variance += (whole[:, 0] - whole[:, 1]).square().sum(0)

    @property
    def square(self) -> Tensor:  # [r_out, r_in]
        """Σ A²."""
        total = combined(self.squares.factors(), self.terms)
        return total.index_copy_(1, self.squares.columns, self.whole).clamp_min_(0)

    @property
    def variance(self) -> Tensor:  # [r_out, r_in]
        """Of its estimate."""
        factors = self.squares.factors()
        total = torch.zeros_like(factors[0])
        for factor, spread in zip(factors, self.spread, strict=True):
            total.addcmul_(factor, combined(factors, spread))
        return total.index_copy_(1, self.squares.columns, self.whole_variance).clamp_min_(0)

    @property
    def state(self) -> dict[str, Tensor]:
        names = "terms", "whole", "spread", "whole_variance"
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up a state."""
        for name, saved in state.items():
            setattr(self, name, saved.to(self.terms))
