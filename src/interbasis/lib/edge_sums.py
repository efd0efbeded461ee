"""The sums over data that the edges of a section follow from (the head of `edges.py`)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.base.devices import sums_device
from interbasis.network.network import Section


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
        """By names that end with the number of the section."""
        variance = {} if self.variance is None else {f"variance.{k}": self.variance}
        return {f"square.{k}": self.square} | variance

    def restore(self, tensors: dict[str, Tensor], k: int) -> None:
        """Take up the sums of section k."""
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
