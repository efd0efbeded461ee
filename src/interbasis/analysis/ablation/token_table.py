"""Few different tokens in many samples: a table of them, and where each is met."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_TOKENS_PER_ROW = 4
"""A table is worth it from so many times fewer rows than tokens."""


@dataclass(frozen=True, eq=False)
class Table:
    """f[n, t] = rows[index[n, t]]."""

    rows: Tensor  # [U, width]
    index: Tensor  # [n, T]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Table":
        """The table of a function of single tokens."""
        return Table(function(self.rows), self.index)


def tabulate(f: Tensor) -> Table | None:  # [n, T, width]
    """The table of a batch whose tokens repeat bit for bit; None where it would not be much smaller."""
    flat = f.flatten(0, 1).contiguous()
    hashes = _hashes(flat)
    different, index = hashes.unique(return_inverse=True)
    if len(different) * MIN_TOKENS_PER_ROW > len(flat):
        return None
    first = torch.full_like(different, len(flat))
    first.scatter_reduce_(0, index, torch.arange(len(flat), device=f.device), "amin")
    rows = flat[first]
    if not torch.equal(rows[index], flat):  # two different tokens with the same hash
        return None
    return Table(rows, index.view(f.shape[:2]))


def _hashes(rows: Tensor) -> Tensor:  # [m, width] -> [m]
    """Sums of the numbers' bits times odd constants, modulo 2⁶⁴: equal rows, equal sums."""
    bits = rows.view(torch.int32).long()
    generator = torch.Generator().manual_seed(0)
    odd = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator) * 2 + 1
    mixed = bits * odd.to(bits.device)
    return (mixed ^ (mixed >> 29)).sum(1)
