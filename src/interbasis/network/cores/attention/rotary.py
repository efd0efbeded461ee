"""Rotary positions: queries and keys are turned by angles that grow with their position."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


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
        first, second, unturned = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, unturned], dim=-1)

    def waves(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of all angles, stretched, in the dtype of ``like``; [..., p] for positions [...]."""
        if not positions.numel():
            return (like.new_zeros(*positions.shape, len(self.frequencies)),) * 2
        cos, sin = _table(self, -(-(int(positions.max()) + 1) // 1024) * 1024, like.dtype, like.device)
        return cos[positions], sin[positions]


@lru_cache(maxsize=8)
def _table(rotary: Rotary, end: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin at the positions below ``end``, [end, p]; angles in float64."""
    frequencies = torch.tensor(rotary.frequencies, dtype=torch.float64)
    angle = torch.arange(end, dtype=torch.float64)[:, None] * frequencies
    cos, sin = (rotary.stretch * wave.to(dtype).to(device) for wave in (angle.cos(), angle.sin()))
    return cos, sin
