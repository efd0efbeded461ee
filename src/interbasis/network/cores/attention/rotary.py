"""Rotary positions: queries and keys are turned by angles that grow with their position."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.runtime.devices import sums_device


@dataclass(frozen=True)
class Rotary:
    """R_t turns coordinate pairs (i, i + p), i < p, of a head by the angle t · frequencies[i].

    Coordinates from 2p on are left alone (partial rotary). ``stretch`` multiplies what is turned. Angles are
    taken in float64 and rounded to the dtype of what is turned.
    """

    frequencies: tuple[float, ...]
    stretch: float = 1.0

    def __repr__(self) -> str:
        stretched = "" if self.stretch == 1 else f", stretch {self.stretch:.6g}"
        slowest = min(self.frequencies)
        return f"Rotary({2 * len(self.frequencies)} coordinates, slowest {slowest:.6g}{stretched})"

    def turn(self, x: Tensor, positions: Tensor, back: bool = False) -> Tensor:
        """R_t x, or R_tᵀ x for ``back``; x [..., T, h], positions [..., T]."""
        pairs = len(self.frequencies)
        cos, sin = self.waves(positions, x)
        if back:
            sin = -sin
        first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

    def waves(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of all angles, stretched, in the dtype of ``like``; [..., p] for positions [...]."""
        home = sums_device(positions.device)
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64).to(home)
        angle = positions.to(home)[..., None] * frequencies
        cos, sin = (self.stretch * wave.to(like) for wave in (angle.cos(), angle.sin()))
        return cos, sin
