"""A section whose output features see some of the input features each, all others at 0:

    f̂_out,i = P̂_i (m_i ∘ f̂) + B̂_i · core(Â (m_i ∘ f̂)).

Output features with equal masks m_i share one pass through the core.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from interbasis.network.cores import FastAblation, Linear

if TYPE_CHECKING:
    from interbasis.network.network import Section

MAX_FOLDED_POSITIONS = 32
"""Positions of a sequence up to which attention is taken straight from few features; its patterns, which that
writes down, are too many in longer ones."""


def masked_pass(section: "Section", f: Tensor, mask: Tensor) -> Tensor:  # [n, T, r_in], [r_out, r_in]
    """Compute the outputs [n, S, r_out] of a section that reads position by position."""
    outputs = section.outputs(f)
    result = f[:, outputs] @ (section.skip * mask).T
    if isinstance(section.core, Linear):
        return result
    read_outs, is_short = MaskedReadOuts(f, section.read), f.shape[1] <= MAX_FOLDED_POSITIONS
    for columns, rows in written_rows(section, mask):
        write = section.write[rows]
        part = None
        if isinstance(section.core, FastAblation) and 2 * len(columns) <= f.shape[2] and is_short:
            part = section.core.written_from(f[..., columns], section.read[:, columns], outputs, write)
        if part is None:
            part = section.core(read_outs.through(mask[rows[0]]), outputs) @ write.T
        result[..., rows] += part
    return result


def written_rows(section: "Section", mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (kept columns, output features) for every different mask; B is 0 for all other features."""
    for columns, rows in equal_masks(mask):
        rows = rows[section.write[rows].any(1)]
        if len(rows):
            yield columns, rows


def equal_masks(mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (kept columns, rows) for every different row of a mask [r_out, r_in] that keeps any column."""
    different, number = mask.unique(dim=0, return_inverse=True)
    for k, row in enumerate(different):
        if row.any():
            yield row.nonzero()[:, 0], (number == k).nonzero()[:, 0]


@dataclass(frozen=True, eq=False)
class MaskedReadOuts:
    """Read-outs Â (m ∘ f̂) for one mask after another."""

    f: Tensor  # [..., r]
    read: Tensor  # Â [c_in, r]

    @cached_property
    def unmasked(self) -> Tensor:  # [..., c_in]
        """Â f̂."""
        return self.f @ self.read.T

    def through(self, mask: Tensor) -> Tensor:  # [r] -> [..., c_in]
        """Compute them from the columns of the mask, or from those it drops if these are fewer."""
        if 2 * mask.sum() <= len(mask):
            return self._from_columns(mask)
        return self.unmasked - self._from_columns(~mask)

    def _from_columns(self, mask: Tensor) -> Tensor:
        columns = mask.nonzero()[:, 0]
        return self.f[..., columns] @ self.read[:, columns].T
