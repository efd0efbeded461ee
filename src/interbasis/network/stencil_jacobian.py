"""Gram matrix of the Jacobian of a section that reads a stencil (`stencil_section.py`).

With p_s the patch of output s, the Jacobian by pixel t is J_st = Σ_k W_k[s, t] (P_k + B N_s A_k). Summed over
all pixels, products of two taps carry their overlap o_kk′(s), equal for all outputs of a class c, hence

    Σ_st J_stᵀG J_st = Σ_c Σ_kk′ o_kk′(c) [ n_c P_kᵀGP_k′ + P_kᵀGB ΣN A_k′ + (…)ᵀ + A_kᵀ ΣNᵀQN A_k′ ],

the sums over N running over the outputs of the class: one pass over the data for all of them. With zero
padding only k = k′ remains, and the classes are the interior and the strips along the border.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.network.cores import Moments, Sums
from interbasis.network.jacobian_gram import JacobianGram, Terms
from interbasis.network.section_jacobian import SectionJacobian
from interbasis.numerics.linalg import square_root_factor, transposed_product

if TYPE_CHECKING:
    from interbasis.network.stencil_section import StencilSection


@dataclass(frozen=True, eq=False)
class StencilJacobian(SectionJacobian):
    """Jacobian of a stencil section into the features Ĉ of its target layer (head of this file)."""

    section: "StencilSection"
    skip: Tensor  # ĈP by tap [K, r, w], the constant left out
    read: Tensor  # A by tap [K, c_in, w]
    write: Tensor  # ĈB [r, c_out]

    @classmethod
    def from_section(cls, section: "StencilSection", transform: Tensor | None) -> "StencilJacobian":
        skip, read, write = (matrix.cpu().double() for matrix in (section.skip, section.read, section.write))
        if transform is not None:
            skip, write = transform.cpu() @ skip, transform.cpu() @ write
        first = section.source.first_coordinate
        by_tap = [section.by_tap(matrix)[..., first:].movedim(1, 0) for matrix in (skip, read)]
        return cls(section, by_tap[0], by_tap[1], write)

    def gram_from_sums(
        self, sums: Sums, metric: Tensor, outputs: int, inputs: int, weight: Tensor | None = None
    ) -> JacobianGram:
        moments = self.section.moments_by_class(sums, metric)
        samples = outputs // self.section.stencil.positions
        rows = [self._used(k) for k in range(self.section.stencil.taps)]
        starts = torch.tensor([0, *(len(X) for X, _, _ in rows)]).cumsum(0).tolist()
        width = self.read.shape[2]
        small = starts[-1] < width
        size = starts[-1] if small else width
        K = torch.zeros(size, size, dtype=torch.float64)
        sizes = torch.zeros(width, width, dtype=torch.float64)
        for (k, other), block in self._blocks(moments, samples, weight).items():
            (X, P, A), (Y, R, C) = rows[k], rows[other]
            whole = torch.cat([P, len(self.write) + A]), torch.cat([R, len(self.write) + C])
            inner = block[whole[0]][:, whole[1]] / inputs
            if small:
                K[starts[k] : starts[k + 1], starts[other] : starts[other + 1]] += inner
                continue
            K += transposed_product(Y, transposed_product(X, inner).T).T
            if k == other:
                sizes += transposed_product(X, inner.diagonal()[:, None] * X)
        if small:
            return JacobianGram(torch.cat([X for X, _, _ in rows]), K)
        terms = Terms(slice(None), square_root_factor(sizes), torch.ones(width, dtype=torch.float64))
        return JacobianGram(None, K, terms=(terms,))

    def _used(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """X = [ĈP_k; A_k] without the rows that are 0, and the indices of the other rows in both."""
        P, A = (matrix[k].any(1).nonzero()[:, 0] for matrix in (self.skip, self.read))
        return torch.cat([self.skip[k, P], self.read[k, A]]), P, A

    def _blocks(
        self, moments: Sequence[Moments], samples: int, weight: Tensor | None
    ) -> dict[tuple[int, int], Tensor]:
        """Blocks of every pair of taps that overlap, Σ_c o_kk′(c) [[n_c G, GB ΣN], [(GB ΣN)ᵀ, ΣNᵀQN]]."""
        blocks: dict[tuple[int, int], Tensor] = {}
        identity = torch.eye(len(self.write), dtype=torch.float64)
        middle = identity if weight is None else weight.cpu()
        for outputs, sums in zip(self.section.stencil.classes, moments, strict=True):
            cross = middle @ self.write @ sums.local.cpu()  # [r, c_in]
            skips = samples * len(outputs.positions) * middle
            block = torch.cat([torch.cat([skips, cross], 1), torch.cat([cross.T, sums.gram.cpu()], 1)])
            for k, other, overlap in outputs.pairs:
                if (k, other) in blocks:
                    blocks[k, other].add_(block, alpha=overlap)
                else:
                    blocks[k, other] = overlap * block
        return blocks
