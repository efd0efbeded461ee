"""The Gram of a section's Jacobian, M′ = (1/nT) Σ JᵀG_outJ, without ever forming a Jacobian.

For F(f) = P f + B · core(A f) and next-layer features C f′, with Ĉ = C_out, N = ∂core/∂u and Q = BᵀĈᵀĈB,

    Σ JᵀĈᵀĈJ = n (ĈP)ᵀ(ĈP) + sym( (ĈP)ᵀ ĈB · ΣN_ss · A ) + Aᵀ (Σ_st N_stᵀQN_st) A,

n being the number of output positions in the data and T the number of *input* positions. The two sums come
from the core: from statistics collected once, or from a pass over the data where they depend on Q.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis import autograd
from interbasis.cores import Moments
from interbasis.data.batches import Batches
from interbasis.linalg import eigenbasis, right_singular_basis, square_root_factor
from interbasis.network import Network, Section
from interbasis.progress import Progress, silent
from interbasis.random_signs import random_signs
from interbasis.statistics import Statistics, chunks


@dataclass(frozen=True)
class JacobianGram:
    """M′ as a product Xᵀ K X, whose inner side may be smaller than the layer. The constant is left out."""

    X: Tensor  # [k, w]
    K: Tensor  # [k, k]

    def eigenbasis(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Λ and V (rows) of M = W M′ Wᵀ, W [r, w], decomposed on the smaller side."""
        if len(self.K) < len(W):
            return right_singular_basis(square_root_factor(self.K) @ (self.X @ W.T))
        inner = self.X @ W.T
        return eigenbasis(inner.T @ self.K @ inner)

    def along(self, directions: Tensor) -> Tensor:  # [r, w] -> [r]
        """x M′ xᵀ for every row x."""
        inner = directions @ self.X.T
        return (inner @ self.K * inner).sum(1)


@dataclass(frozen=True)
class Jacobians:
    """Jacobian Grams of a network over some data."""

    network: Network
    statistics: Statistics
    """Of the same data, with the cores' sums."""
    batches: Batches
    sources: int | None = None
    """Stochastic sources over output positions for the general path; None is exact."""
    seed: int = 0
    progress: Progress = silent

    def to_next(self, index: int, transform: Tensor) -> JacobianGram:
        """From node layer ``index`` to the features C [r, d] of the one after it."""
        section = self.network.sections[index]
        transform = transform.to(self.network.device)
        write = transform @ section.write.double()
        metric = write.T @ write
        if section.core.has_statistics:
            moments = section.core.moments(self.statistics.cores[index], metric)
        else:
            moments = self._moments(index, section, metric)
        source, target = self.statistics.layers[index : index + 2]
        return assemble(section, transform, write, moments, target.count, source.count)

    def to_end(self, transform: Tensor) -> list[JacobianGram]:
        """From every node layer to the features C [r, d] of the last one, by the general path.

        The last section alone has its closed form; all other layers share one pass over the data.
        """
        network = self.network
        *rest, last = range(len(network.sections))
        result = [self.to_next(last, transform)]
        if not rest:
            return result
        transform = transform.to(network.device, network.dtype)
        totals: list[Tensor] = []
        for signs, f in self._pass(0, [section.last_only for section in network.sections]):
            found = autograd.grams_to_end(network.sections, f, transform, signs)
            totals = [a + b for a, b in zip(totals, found, strict=True)] if totals else found
        for index in reversed(rest):
            first = 1 if network.nodes[index].constant else 0
            gram = totals[index][first:, first:].cpu() / self.statistics.layers[index].count
            result.insert(0, JacobianGram(torch.eye(len(gram), dtype=torch.float64), gram))
        return result

    def _moments(self, index: int, section: Section, metric: Tensor) -> Moments:
        metric = metric.to(self.network.dtype)
        local, gram = torch.zeros(2, 1, dtype=torch.float64, device=metric.device)
        for signs, f in self._pass(index, [section.last_only]):
            outputs = section.kept(f).shape[1]
            some = section.core.batch_moments(f @ section.read.T, outputs, metric, signs)
            local, gram = local + some.local.double(), gram + some.gram.double()
        return Moments(local, gram)

    @torch.no_grad()
    def _pass(self, index: int, last_only: list[bool]) -> Iterator[tuple[Tensor | None, Tensor]]:
        """(signs, activations at a node layer) over the data, in chunks."""
        name = self.network.layers[index]
        for first, inputs in chunks(self.network, self.batches):
            f = self.network.activations_at(index, inputs)
            outputs = 1 if any(last_only) else f.shape[1]
            signs = None
            if self.sources is not None and outputs > 1:
                signs = random_signs((self.seed, index), first, len(f), outputs * self.sources)
                signs = signs.view(len(f), outputs, self.sources).to(f)
            yield signs, f
            self.progress(f"Jacobian at {name}", first + len(inputs), len(self.batches))


def assemble(
    section: Section, transform: Tensor, write: Tensor, moments: Moments, outputs: int, inputs: int
) -> JacobianGram:
    """The identity at the head of this file, divided by the number of input positions, on the CPU."""
    first = 1 if section.source.constant else 0
    P = (transform @ section.skip.double())[:, first:].cpu()  # [r, w]
    A = section.read.double()[:, first:].cpu()  # [c_in, w]
    cross = (write @ moments.local).cpu()  # [r, c_in]
    inner = moments.gram.cpu()
    P, cross = P[P.any(dim=1)], cross[P.any(dim=1)]
    if len(P) + len(A) < A.shape[1]:
        X = torch.cat([P, A])
        diagonal = outputs * torch.eye(len(P), dtype=torch.float64)
        K = torch.cat([torch.cat([diagonal, cross], 1), torch.cat([cross.T, inner], 1)])
        return JacobianGram(X, K / inputs)
    mixed = P.T @ cross @ A
    K = outputs * P.T @ P + mixed + mixed.T + A.T @ inner @ A
    return JacobianGram(torch.eye(len(K), dtype=torch.float64), K / inputs)
