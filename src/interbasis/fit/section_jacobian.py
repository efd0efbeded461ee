"""The Jacobian Gram of one section, from the two sums that its core answers (the head of `jacobian.py`)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.fit.jacobian_gram import JacobianGram
from interbasis.network.cores import Moments
from interbasis.network.network import Section


@dataclass(frozen=True, eq=False)
class SectionJacobian:
    """A section into the features Ĉ of its target layer, and the identity at the head of this file."""

    section: Section
    transform: Tensor | None
    """Ĉ [r, d_out]; None is the identity."""
    write: Tensor
    """ĈB [r, c_out] in float64."""

    @classmethod
    def of(cls, section: Section, transform: Tensor | None) -> "SectionJacobian":
        write = section.write.double()
        if transform is None:
            return cls(section, None, write)
        transform = transform.to(write.device)
        return cls(section, transform, transform @ write)

    @property
    def metric(self) -> Tensor:  # [c_out, c_out]
        """Q = BᵀĈᵀĈB."""
        return self.write.T @ self.write

    def gram(self, moments: Moments, outputs: int, inputs: int, weight: Tensor | None = None) -> JacobianGram:
        """M′ on the CPU, from the core's moments and the numbers of output and input positions.

        ``weight`` [r, r] stands between Ĉᵀ and Ĉ, in the metric that the moments were made with too.
        """
        first = self.section.source.first_coordinate
        skip = self.section.skip.double()
        P = (skip if self.transform is None else self.transform @ skip)[:, first:].cpu()  # [r, w]
        A = self.section.read.double()[:, first:].cpu()  # [c_in, w]
        cross = moments.written(self.write)  # [r, c_in]
        used = P.any(dim=1)
        if weight is not None:
            weight = weight.cpu()
            cross, weight = weight @ cross, weight[used][:, used]
        P, cross = P[used], cross[used]
        if len(P) + len(A) < A.shape[1]:
            X = torch.cat([P, A])
            skips = outputs * (torch.eye(len(P), dtype=torch.float64) if weight is None else weight)
            K = torch.cat([torch.cat([skips, cross], 1), torch.cat([cross.T, moments.gram.cpu()], 1)])
            return JacobianGram(X, K / inputs)
        mixed = P.T @ cross @ A
        K = outputs * P.T @ (P if weight is None else weight @ P) + mixed + mixed.T + moments.between(A)
        ones = torch.full((len(P),), float(outputs), dtype=torch.float64)
        sizes = torch.cat([ones, moments.diagonal()])
        terms = torch.cat([P, A]), sizes / inputs
        return JacobianGram(torch.eye(len(K), dtype=torch.float64), K / inputs, terms=terms)
