"""Sums over data that edges follow from: Σ A² of single tokens or signed groups, and in closed form.

Squares of single tokens are exact, so that an estimate from some positions is off by their choice alone. With
X₁ and X₂ what every other one of a sequence's positions adds, those of neighbouring stretches, X₁ + X₂ is the
estimate, and E (X₁ − X₂)² = Var(X₁ + X₂) + (E X₁ − E X₂)²: its error, and no less than that.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.devices import double, sums_device
from interbasis.network.cores.squares import Squares, combined
from interbasis.network.network import Section

MAX_ELEMENTS = 2**22
"""Numbers that the sums of some sequences may hold at once."""


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of one section."""

    rms: Tensor
    """Ê [features_out, features_in]."""
    error: Tensor | None = None
    """Standard error of Ê from the stochastic sources, same shape; None where the sum was exact."""


@dataclass
class EdgeSums:
    """Sums over data from which edges follow; those of other data can be merged in."""

    square: Tensor  # Σ A² or its estimate  [r_out, r_in]
    variance: Tensor | None  # of that estimate, None where it is exact
    tokens: int = 0  # n·T, input positions

    @classmethod
    def zero(cls, section: Section, estimated: bool) -> "EdgeSums":
        size = len(section.skip), section.features_in
        zeros = torch.zeros(size, dtype=torch.float64, device=sums_device(section.skip.device))
        return cls(zeros, zeros.clone() if estimated else None)

    def merge(self, other: "EdgeSums") -> None:
        self.square = self.square + other.square
        self.tokens += other.tokens
        if self.variance is not None and other.variance is not None:
            self.variance = self.variance + other.variance

    def tensors(self, k: int) -> dict[str, Tensor]:
        """Return the sums by names that end with the number of the section."""
        variance = {} if self.variance is None else {f"variance.{k}": self.variance}
        return {f"square.{k}": self.square} | variance

    def restore(self, tensors: dict[str, Tensor], k: int) -> None:
        """Load the sums of section k."""
        self.square = tensors[f"square.{k}"].to(self.square)
        if self.variance is not None:
            self.variance = tensors[f"variance.{k}"].to(self.variance)

    @property
    def edges(self) -> Edges:
        rms = (self.square / self.tokens).sqrt().cpu()
        if self.variance is None:
            return Edges(rms)
        # error of a root: σ(Ê) = σ(Ê²) / 2Ê
        error = (self.variance.sqrt() / self.tokens).cpu() / (2 * rms)
        return Edges(rms, torch.where(rms > 0, error, 0.0))


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
        """Add tokens, all of which count."""
        f, weights = f[None], torch.ones(1, 1, len(f)).to(self.terms)
        self.terms += self.squares.terms(f, weights)[0, 0]
        self.whole += self.squares.at_columns(f, weights)[0, 0]

    def add_sampled(self, f: Tensor, weights: Tensor) -> None:  # [n, Q, r_in], [n, Q]
        """Add sampled positions of every sequence, weighted by how many positions each stands for."""
        weights = double(weights)
        every_other = torch.arange(f.shape[1], device=weights.device) % 2 == 0
        halves = torch.stack([weights * every_other, weights * ~every_other], dim=1)
        samples = max(1, MAX_ELEMENTS // max(1, 2 * (self.terms.numel() + self.whole.numel())))
        for part, part_weights in zip(f.split(samples), halves.split(samples), strict=True):
            terms, whole = self.squares.terms(part, part_weights), self.squares.at_columns(part, part_weights)
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
        """Variance of the estimate of Σ A²."""
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
        """Load a state."""
        for name, saved in state.items():
            setattr(self, name, saved.to(self.terms))
