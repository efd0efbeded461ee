"""Gram matrix of a section's Jacobian, from the two sums that its core provides.

For F(f) = P f + B · core(A f), target features Ĉ [r, d_out], N = ∂core/∂u and Q = BᵀĈᵀĈB,

    Σ JᵀĈᵀĈJ = n (ĈP)ᵀ(ĈP) + sym( (ĈP)ᵀ ĈB · ΣN_ss · A ) + Aᵀ (Σ_st N_stᵀQN_st) A,

with n the number of output positions in the data.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interbasis.base.devices import double
from interbasis.network.cores import Moments, Sums
from interbasis.network.jacobian_gram import ROWS_AT_ONCE, JacobianGram, Terms

if TYPE_CHECKING:
    from interbasis.network.network import Section


class SectionJacobian(ABC):
    """A section into the features Ĉ of its target layer."""

    write: Tensor
    """ĈB [r, c_out] in float64."""

    @cached_property
    def metric(self) -> Tensor:  # [c_out, c_out]
        """Q = BᵀĈᵀĈB."""
        return self.write.T @ self.write

    def weighted_metric(self, weight: Tensor) -> Tensor:  # [r, r] -> [c_out, c_out]
        """BᵀĈᵀ weight ĈB."""
        return self.write.T @ weight @ self.write

    @abstractmethod
    def gram_from_sums(
        self, sums: Sums, metric: Tensor, outputs: int, inputs: int, weight: Tensor | None = None
    ) -> JacobianGram:
        """Compute M′ from the core's sums over the data for this metric.

        ``outputs`` and ``inputs`` are the numbers of output and input positions. ``weight`` [r, r] stands
        between Ĉᵀ and Ĉ, in the metric too.
        """


@dataclass(frozen=True, eq=False)
class DenseJacobian(SectionJacobian):
    """Jacobian of a section that reads position by position."""

    section: "Section"
    transform: Tensor | None
    """Ĉ [r, d_out]; None is the identity."""
    write: Tensor

    @classmethod
    def from_section(cls, section: "Section", transform: Tensor | None) -> "DenseJacobian":
        write = double(section.write)
        if transform is None:
            return cls(section, None, write)
        transform = transform.to(write.device)
        return cls(section, transform, transform @ write)

    def gram_from_sums(
        self, sums: Sums, metric: Tensor, outputs: int, inputs: int, weight: Tensor | None = None
    ) -> JacobianGram:
        return self.gram(self.section.core.moments(sums, metric), outputs, inputs, weight)

    def gram(self, moments: Moments, outputs: int, inputs: int, weight: Tensor | None = None) -> JacobianGram:
        """Compute M′, on the CPU, from the core's moments; arguments as for `gram_from_sums`."""
        first = self.section.source.first_coordinate
        P = self._skip()[:, first:].cpu()  # [r, w]
        A = self.section.read[:, first:].cpu()  # [c_in, w]
        cross = moments.written(self.write)  # [r, c_in]
        used = P.any(dim=1)
        if weight is not None:
            weight = weight.cpu()
            cross, weight = weight @ cross, weight[used][:, used]
        if not used.all():
            P, cross = P[used], cross[used]
        if len(P) + len(A) < A.shape[1]:
            X = torch.cat([P, A.double()])
            skips = outputs * (torch.eye(len(P), dtype=torch.float64) if weight is None else weight)
            K = torch.cat([torch.cat([skips, cross], 1), torch.cat([cross.T, moments.gram.cpu()], 1)])
            return JacobianGram(X, K / inputs)
        seen = slice(*(column - first for column in self.section.columns_read))
        K = torch.zeros(A.shape[1], A.shape[1], dtype=torch.float64)
        K[seen, seen] = moments.between(A[:, seen])
        mixed = P.T @ _product(cross, A[:, seen])
        K[:, seen] += mixed
        K[seen] += mixed.T
        del mixed
        K.addmm_(P.T, P if weight is None else weight @ P, alpha=outputs)
        ones = torch.full((len(P),), float(outputs), dtype=torch.float64)
        terms = Terms(slice(None), P, ones / inputs), Terms(seen, A[:, seen], moments.diagonal() / inputs)
        return JacobianGram(None, K.div_(inputs), terms=terms)

    def _skip(self) -> Tensor:  # [r, d_in]
        """ĈP."""
        skip = double(self.section.skip)
        return skip if self.transform is None else self.transform @ skip


def _product(x: Tensor, A: Tensor) -> Tensor:  # [r, c], [c, w] -> [r, w]
    """x A in float64, without a copy of A."""
    total = torch.zeros(len(x), A.shape[1], dtype=torch.float64)
    for columns, rows in zip(x.split(ROWS_AT_ONCE, 1), A.split(ROWS_AT_ONCE), strict=True):
        total.addmm_(columns, rows.double())
    return total
