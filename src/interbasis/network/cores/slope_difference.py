"""Cores of two sections together, where the Jacobian of each is diagonal: act(u), and act(g) ∘ w.

N is made of diagonal blocks, each a run of slopes d_a at some outputs and read-outs, so that

    Σ N = diag Σd_a in every block,    Σ NᵀQN += Q ∘ Σ d_a d_bᵀ for every pair of blocks,

and Σ d dᵀ of all slopes is a sufficient statistic for every Q.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from interbasis.base.devices import double_sum
from interbasis.network.cores.core import Moments, StatisticsCore, Sums
from interbasis.network.cores.elementwise import ActivationCore, Elementwise
from interbasis.numerics import autograd
from interbasis.numerics.integration import Rule
from interbasis.numerics.linalg import symmetric_product

SlopeCore = ActivationCore
"""Cores with diagonal Jacobians: as many outputs as read-outs, or half as many."""


class DiagonalBlock(NamedTuple):
    """A diagonal block of N: where its slopes, outputs and read-outs are, of equal length."""

    slopes: slice
    outputs: slice
    reads: slice


class PairedSlopes(StatisticsCore):
    """A core made from two others whose Jacobian consists of diagonal blocks."""

    blocks: tuple[DiagonalBlock, ...]

    def __init__(self, first: SlopeCore, second: SlopeCore, widths: tuple[int, int]):
        """Two cores, and the number of read-outs of each."""
        self.first, self.second, self.widths = first, second, widths

    @abstractmethod
    def slopes(self, u: Tensor) -> Tensor:  # [tokens, c_in] -> [tokens, slopes]
        """Slopes d that the blocks refer to."""

    def to(self, *args: Any, **kwargs: Any) -> "PairedSlopes":
        return type(self)(self.first.to(*args, **kwargs), self.second.to(*args, **kwargs), self.widths)

    def tensors(self) -> list[Tensor]:
        return [*self.first.tensors(), *self.second.tensors()]

    def statistics(self, u: Tensor, outputs: slice) -> Sums:
        d = self.slopes(u[:, outputs].flatten(0, 1))
        return {"slopes": double_sum(d, 0), "slope_products": symmetric_product(d)}

    def moments(self, sums: Sums, metric: Tensor) -> Moments:
        reads = max(block.reads.stop for block in self.blocks)
        local, gram = metric.new_zeros(len(metric), reads), metric.new_zeros(reads, reads)
        for a in self.blocks:
            local[a.outputs, a.reads].diagonal().add_(sums["slopes"][a.slopes])
            for b in self.blocks:
                gram[a.reads, b.reads].addcmul_(
                    metric[a.outputs, b.outputs], sums["slope_products"][a.slopes, b.slopes]
                )
        return Moments(local, gram)

    def attributions(self, u: Tensor, f: Tensor, read: Tensor, outputs: slice, rule: Rule) -> Tensor:
        u, f = (x[:, outputs].flatten(0, 1)[:, None] for x in (u, f))
        return autograd.attributions(lambda u: self(u, slice(0, 1)), u, f, read, rule)


class SlopeDifference(PairedSlopes):
    """Change of a core between two sections with the same input (`network/difference.py`).

    Reads [Δu | u_G] and puts out [core_F(u_F) − core_G(u_G) | core_G(u_G)] with u_F = u_G + Δu, so that

        N = | diag(d_F)   diag(d_F − d_G) |
            |     0           diag(d_G)   |

    from the slopes [d_G | d_F − d_G]. A small change is a small entry of N, never a difference of large sums.
    """

    def __init__(self, first: SlopeCore, second: SlopeCore, widths: tuple[int, int]):
        super().__init__(first, second, widths)
        reads, outputs = widths[0], output_count(first, widths[0])
        change, base = slice(0, outputs), slice(outputs, 2 * outputs)
        self.blocks = tuple(
            DiagonalBlock(slopes, rows, columns)
            for start in range(0, reads, outputs)
            for here in [slice(start, start + outputs)]
            for behind in [slice(reads + start, reads + start + outputs)]
            for slopes, rows, columns in (
                (here, change, here), (behind, change, here), (behind, change, behind), (here, base, behind),
            )
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"SlopeDifference({self.first})"

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:  # [n, T, 2c] -> [n, S, 2m]
        change, u_G = u.chunk(2, dim=-1)
        base = self.second(u_G, outputs)
        return torch.cat([self.first(u_G + change, outputs) - base, base], dim=-1)

    def slopes(self, u: Tensor) -> Tensor:
        change, u_G = u.chunk(2, dim=-1)
        base = self.second.slopes(u_G)
        return torch.cat([base, self.first.slopes(u_G + change) - base], dim=-1)


class SideBySide(PairedSlopes):
    """Two different cores on read-outs [u_F | u_G], with outputs [core_F(u_F) | core_G(u_G)]."""

    def __init__(self, first: SlopeCore, second: SlopeCore, widths: tuple[int, int]):
        super().__init__(first, second, widths)
        blocks, row, column = [], 0, 0
        for core, reads in zip((first, second), widths, strict=True):
            outputs = output_count(core, reads)
            for start in range(column, column + reads, outputs):
                here = slice(start, start + outputs)
                blocks.append(DiagonalBlock(here, slice(row, row + outputs), here))
            row, column = row + outputs, column + reads
        self.blocks = tuple(blocks)

    def __repr__(self) -> str:
        return f"SideBySide({self.first}, {self.second})"

    def __call__(self, u: Tensor, outputs: slice) -> Tensor:
        u_F, u_G = u.split(self.widths, dim=-1)
        return torch.cat([self.first(u_F, outputs), self.second(u_G, outputs)], dim=-1)

    def slopes(self, u: Tensor) -> Tensor:
        u_F, u_G = u.split(self.widths, dim=-1)
        return torch.cat([self.first.slopes(u_F), self.second.slopes(u_G)], dim=-1)


def output_count(core: SlopeCore, reads: int) -> int:
    """Number of outputs of a core with so many read-outs."""
    return reads if isinstance(core, Elementwise) else reads // 2


def trace_weights(blocks: Sequence[DiagonalBlock], metric: Tensor, outer: Tensor) -> Tensor:
    """Weights V with Σ V ∘ Σ d dᵀ = tr(Aᵀ (Σ NᵀQN) A), from Q and A Aᵀ [c_in, c_in]."""
    size = max(block.slopes.stop for block in blocks)
    weights = metric.new_zeros(size, size)
    for a in blocks:
        for b in blocks:
            weights[a.slopes, b.slopes].addcmul_(metric[a.outputs, b.outputs], outer[a.reads, b.reads])
    return weights
