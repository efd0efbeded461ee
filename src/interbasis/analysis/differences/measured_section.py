"""A section of two models with the metric of its outputs: sums over data, and what follows from them.

With T [r, d_out], W = TᵀT, and the difference section D(f) = ΔP f + B core(A f) (`network/difference.py`),

    tr Σ JᵀWJ = n |TΔP|² + 2 ⟨BᵀWΔP Aᵀ, ΣN_ss⟩ + ⟨AAᵀ, Σ NᵀQN⟩,      Q = BᵀWB,

which is linear in the core's sums. The first model's own Jacobian, without streams that it carries, is in
the same sums: its block of N reads A_F and is written by B_F.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from interbasis.network.cores import Linear, PassCore, Sums
from interbasis.network.cores.attention.difference import AttentionDifference
from interbasis.network.cores.slope_difference import PairedSlopes, SlopeDifference, trace_weights
from interbasis.network.difference import difference, in_memory
from interbasis.network.network import Section
from interbasis.network.section_jacobian import SectionJacobian
from interbasis.numerics.linalg import eigenbasis


@dataclass(frozen=True, eq=False)
class MeasuredSection:
    """Section of the first model F, of the second G, and T [r, d_out], W = TᵀT."""

    first: Section
    second: Section
    transform: Tensor

    @cached_property
    def difference(self) -> Section:
        return difference(self.first, self.second)

    @cached_property
    def changed(self) -> bool:
        """Whether the two sections differ."""
        return bool(self.difference.skip.any() or self.difference.write.any())

    @cached_property
    def jacobian(self) -> SectionJacobian:
        return self.difference.jacobian(self.transform)

    @cached_property
    def metric(self) -> Tensor:
        """Q."""
        return self.jacobian.metric

    def core_sums(self, f: Tensor, queries: Tensor | None = None) -> Sums:  # [n, T, d_in]
        """Sums of the difference's core over a batch.

        Those of attention may be over sampled ``queries`` [n, Q], scaled to all positions.
        """
        section = self.difference
        u, outputs = section.read_outs(f), section.outputs(f)
        if isinstance(section.core, AttentionDifference) and queries is not None and not section.last_only:
            sums = section.core.sums_at(u, queries, self.metric.to(u))
            return {name: total * (f.shape[1] / queries.shape[1]) for name, total in sums.items()}
        if isinstance(section.core, PassCore):
            return section.batch_sums(u, outputs, self.metric.to(u), None, None)
        return section.statistics(u[:, outputs].flatten(0, 1))

    def outputs(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # [n, T, d_in] -> [n, S, d_out] each
        """D(f), what F computes beside streams that it carries, and G(f), from one evaluation of both cores.

        The last outputs of the difference's core are those of G.
        """
        section, first, second = self.difference, in_memory(self.first), in_memory(self.second)
        c = section.core(section.read_outs(f), section.outputs(f))
        D = _carried(section, f) + section._apply_write(c)
        base = _carried(second, f)
        if not isinstance(second.core, Linear):
            base = base + second._apply_write(c[..., c.shape[-1] - second.shapes.write[1] :])
        computed = base + D
        return D, computed if isinstance(first.core, Linear) else computed - _carried(first, f), base

    @cached_property
    def _computing(self) -> Section:
        first = in_memory(self.first)
        if isinstance(first.core, Linear):
            return first
        return replace(first, skip=torch.zeros_like(first.skip))

    @cached_property
    def traces(self) -> Callable[[Sums, Tensor], tuple[float, float]]:
        """tr Σ JᵀWJ of the difference and of the first model's section, from sums over a batch.

        The second argument f [n, T, d_in] are the inputs that the sums are over.
        """
        if not self.difference.reads_per_position:
            return StencilTraces(self, self._computing.jacobian(self.transform))
        return DenseTraces(self)

    def head_changes(self, sums: Sums) -> dict[int, dict[str, float]]:
        """tr Σ JᵀWJ through single heads of attention, by path and through all three ("total")."""
        core = self.difference.core
        if not isinstance(core, AttentionDifference):
            return {}
        read = self.difference.read[:, self.difference.source.first_coordinate :].double()
        result = {}
        for head in range(core.shape.heads):
            paths = core.rows(head)
            rows = paths | {"total": torch.cat(list(paths.values()))}
            result[head] = {name: _through(sums["gram"], read, index) for name, index in rows.items()}
        return result

    def reading_gram(self, sums: Sums, inputs: int) -> Tensor | None:  # [d_in, d_in] without the constant
        """E[KᵀWK] with K = B_F N_F (A_F − A_G), the part of J from weights that read the input differently.

        ``inputs`` is the number of input positions. None where both sections read the same, or stand side by
        side.
        """
        core, section = self.difference.core, self.difference
        if not section.reads_per_position or not isinstance(core, SlopeDifference | AttentionDifference):
            return None
        reads = len(section.read) // 2
        A = section.read[:reads, section.source.first_coordinate :].double().cpu()
        gram = core.moments(sums, self.metric).gram[:reads, :reads].cpu()
        return A.T @ gram @ A / inputs if A.any() else None

    def path_directions(self, sums: Sums, head: int) -> dict[str, Tensor]:  # [2h, d_in] each
        """Leading input directions of the change through one head, by path."""
        core, first = self.difference.core, self.difference.source.first_coordinate
        assert isinstance(core, AttentionDifference)
        found = {}
        for path, rows in core.rows(head).items():
            A, K = self.difference.read[rows].double()[:, first:], sums["gram"][rows][:, rows]
            _, vectors = eigenbasis(A.T @ K @ A)
            found[path] = torch.nn.functional.pad(vectors[: len(rows)], (first, 0))
        return found


def _carried(section: Section, f: Tensor) -> Tensor:
    """P f at the positions that come out; the skip of a stencil chooses them itself."""
    return section._apply_skip(f[:, section.outputs(f)] if section.reads_per_position else f)


def _through(gram: Tensor, read: Tensor, rows: Tensor) -> float:
    """tr A_Rᵀ K_RR A_R for some read-outs R."""
    A, K = read[rows], gram[rows][:, rows]
    return float(((K @ A) * A).sum())


class StencilTraces:
    """Traces of sections that read stencils; those of the first model take sums of their own."""

    def __init__(self, measured: MeasuredSection, computing: SectionJacobian):
        self.measured, self.computing = measured, computing

    def __call__(self, sums: Sums, f: Tensor) -> tuple[float, float]:
        measured, section = self.measured, self.measured._computing
        counts = f.shape[0] * measured.difference.count_out(f.shape[1]), f.shape[0] * f.shape[1]
        change = measured.jacobian.gram_from_sums(sums, measured.metric, *counts)
        u = section.read_outs(f)
        if isinstance(section.core, PassCore):
            own = section.batch_sums(u, section.outputs(f), self.computing.metric, None, None)
        else:
            own = section.statistics(u.flatten(0, 1))
        base = self.computing.gram_from_sums(own, self.computing.metric, *counts)
        return counts[1] * float(change.matrix.trace()), counts[1] * float(base.matrix.trace())


class DenseTraces:
    """Traces of sections that read position by position."""

    def __init__(self, measured: MeasuredSection):
        section, first = measured.difference, in_memory(measured.first)
        start, T = section.source.first_coordinate, measured.transform.to(section.skip).double()
        P, A = T @ section.skip.double()[:, start:], section.read.double()[:, start:]
        B = measured.jacobian.write
        self.section, self.metric = section, measured.metric
        self.skip_square = float(P.square().sum())
        cross, outer = (B.T @ P) @ A.T, A @ A.T  # [c_out, c_in], [c_in, c_in]
        own = T @ first.skip.double()[:, start:] if isinstance(first.core, Linear) else None
        self.own_skip_square = 0.0 if own is None else float(own.square().sum())
        own_read = first.read.double()[:, start:]
        reads, outputs = len(own_read), first.write.shape[1]
        own_outer = torch.zeros_like(outer)
        own_outer[:reads, :reads] = own_read @ own_read.T
        own_metric = torch.zeros_like(self.metric)
        written = T @ first.write.double()
        own_metric[:outputs, :outputs] = written.T @ written
        core = section.core
        if isinstance(core, PairedSlopes):
            self.weights = (
                trace_weights(core.blocks, self.metric, outer),
                trace_weights(core.blocks, own_metric, own_outer),
            )
            self.diagonals = [cross[block.outputs, block.reads].diagonal().clone() for block in core.blocks]
        else:
            self.cross, self.outer, self.own_outer, self.own_metric = cross, outer, own_outer, own_metric

    def __call__(self, sums: Sums, f: Tensor) -> tuple[float, float]:
        count = f.shape[0] * self.section.count_out(f.shape[1])
        core = self.section.core
        if isinstance(core, PairedSlopes):
            products = sums["slope_products"].double()
            change, base = (float((weights * products).sum()) for weights in self.weights)
            for block, diagonal in zip(core.blocks, self.diagonals, strict=True):
                change += 2 * float(diagonal @ sums["slopes"][block.slopes])
        else:
            moments = core.moments(sums, self.metric)
            change = float((moments.gram * self.outer).sum()) + 2 * float((moments.local * self.cross).sum())
            own = moments if isinstance(core, PassCore) else core.moments(sums, self.own_metric)
            base = float((own.gram * self.own_outer).sum())
        return change + count * self.skip_square, base + count * self.own_skip_square
