"""The Gram of a section's Jacobian, M′ = (1/nT) Σ JᵀG_outJ, without ever forming a Jacobian.

For F(f) = P f + B · core(A f) and next-layer features C f′, with Ĉ = C_out, N = ∂core/∂u and Q = BᵀĈᵀĈB,

    Σ JᵀĈᵀĈJ = n (ĈP)ᵀ(ĈP) + sym( (ĈP)ᵀ ĈB · ΣN_ss · A ) + Aᵀ (Σ_st N_stᵀQN_st) A,

n being the number of output positions in the data and T the number of *input* positions. The two sums come
from the core: from statistics collected once, or from a pass over the data where they depend on Q.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from interbasis import autograd
from interbasis.cores import Moments
from interbasis.data.batches import Batches
from interbasis.linalg import eigenbasis, right_singular_basis, square_root_factor
from interbasis.network import Network, Section
from interbasis.progress import Progress, silent
from interbasis.random_signs import random_positions, random_signs
from interbasis.resume import NOTHING, Resume, State
from interbasis.statistics import Statistics, chunks
from interbasis.stored_streams import StoredStreams


@dataclass(frozen=True)
class JacobianGram:
    """M′ as a product Xᵀ K X, whose inner side may be smaller than the layer. The constant is left out."""

    X: Tensor  # [k, w]
    K: Tensor  # [k, k]
    noise: Tensor | None = None  # [k, k]
    """How far K may be off where query positions were sampled: half the difference of two estimates."""
    terms: tuple[Tensor, Tensor] | None = None  # [k′, w], [k′]
    """What M′ was summed from where X has been multiplied into K: rows Y = [ĈP; A] and the mean squares of
    the Jacobian by each of them. They are X and the diagonal of K otherwise."""

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

    def magnitudes_along(self, directions: Tensor) -> Tensor:  # [r, w] -> [r]
        """What x M′ xᵀ is the sum of before anything cancels, Σ_i (Y x)_i² size_i.

        An entry ij of a Gram summed in rounded numbers is off by a few ε √(size_i size_j); where these errors
        are independent, x M′ xᵀ is off by as many ε times this.
        """
        rows, sizes = self.terms or (self.X, self.K.diagonal())
        return (directions @ rows.T).square() @ sizes

    def errors_along(self, directions: Tensor) -> Tensor | None:  # [r, w] -> [r]
        """Standard errors of `along`: |x δM′ xᵀ|, each from one degree of freedom."""
        if self.noise is None:
            return None
        inner = directions @ self.X.T
        return (inner @ self.noise * inner).sum(1).abs()


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
    queries: int | None = None
    """Query positions sampled per sequence in attention; None is all of them."""
    kept: Resume = NOTHING
    streams: StoredStreams | None = None
    """Where activations are kept between passes; None computes them again."""

    def to_next(self, index: int, transform: Tensor | None) -> JacobianGram:
        """From node layer ``index`` to the features C [r, d] of the one after it; None is the identity."""
        section = self.network.sections[index]
        write = section.write.double()
        if transform is not None:
            transform = transform.to(self.network.device)
            write = transform @ write
        metric = write.T @ write
        source, target = self.statistics.layers[index : index + 2]
        if section.core.has_statistics:
            moments = section.core.moments(self.statistics.cores[index], metric)
        elif self._samples(section, source.count):
            halves = [
                assemble(section, transform, write, half, target.count, source.count)
                for half in self._sampled_moments(index, section, metric)
            ]
            one, other = halves
            return JacobianGram(one.X, (one.K + other.K) / 2, (one.K - other.K) / 2, one.terms)
        else:
            moments = self._moments(index, section, metric)
        return assemble(section, transform, write, moments, target.count, source.count)

    def _samples(self, section: Section, tokens: int) -> bool:
        """Whether queries are sampled: where that is fewer than there are."""
        if self.queries is None or not section.core.samples_queries or section.last_only:
            return False
        return self.queries < tokens / self.statistics.samples

    def _sampled_moments(self, index: int, section: Section, metric: Tensor) -> list[Moments]:
        """Two independent estimates of the moments, each unbiased, from half of the queries each."""
        metric, core = metric.to(self.network.dtype), section.core
        count = max(1, (self.queries or 2) // 2)
        part = self.kept.part(f"jacobian_sums.{index}", len(self.batches))
        sums = {name: saved.to(metric.device) for name, saved in part.tensors.items()}
        for first, f in self._activations(index, f"Jacobian at {section.source.name}", part.done):
            u, positions = section.read_outs(f), f.shape[1]
            for half, purpose in enumerate(("queries", "other queries")):
                key = (purpose, self.seed, index)
                at = random_positions(key, first, len(f), count, positions).to(f.device)
                found = core.sums_at(u, at, metric)
                weight = positions / at.shape[1]
                _add(sums, {f"{name}.{half}": total for name, total in found.items()}, weight)
            part.save(first + len(f) - self.batches.offset, partial(_plain, sums))
        halves = ({name[:-2]: sums[name] for name in sums if name.endswith(f".{half}")} for half in range(2))
        return [core.gathered(half, metric) for half in halves]

    def to_end(self, transform: Tensor) -> list[JacobianGram]:
        """From every node layer to the features C [r, d] of the last one, by the general path.

        The last section alone has its closed form; all other layers share one pass over the data. A layer
        that is read through A alone has M′ = Aᵀ K A with K the Gram of the Jacobian by u = A f.
        """
        network = self.network
        last = len(network.sections) - 1
        result = [self.to_next(last, transform)]
        if last == 0:
            return result
        transform = transform.to(network.device, network.dtype)
        narrow = [_reads_only(section) for section in network.sections]
        part = self.kept.part("jacobian.end", len(self.batches))
        totals = [part.tensors[str(k)] for k in range(len(part.tensors))]
        mixing = any(section.core.mixes_positions or section.last_only for section in network.sections)
        for done, signs, f in self._pass(0, network.sections, "Jacobians to the end", part.done):
            if not mixing:  # every token by itself: one backward pass per coordinate does for all
                signs, f = None, f.flatten(0, 1)[:, None]
            found = autograd.grams_to_end(_stages(network.sections, narrow), f, transform, signs)
            totals = [a + b for a, b in zip(totals, found, strict=True)] if totals else found
            part.save(done, partial(_numbered, totals))
        for index in reversed(range(last)):
            section, count = network.sections[index], self.statistics.layers[index].count
            gram, first = totals[index].cpu() / count, 1 if section.source.constant else 0
            if narrow[index]:
                result.insert(0, JacobianGram(section.read.double().cpu()[:, first:], gram))
            else:
                identity = torch.eye(len(gram) - first, dtype=torch.float64)
                result.insert(0, JacobianGram(identity, gram[first:, first:]))
        return result

    def _moments(self, index: int, section: Section, metric: Tensor) -> Moments:
        metric = metric.to(self.network.dtype)
        part = self.kept.part(f"jacobian_sums.{index}", len(self.batches))
        sums = {name: saved.to(metric.device) for name, saved in part.tensors.items()}
        phase = f"Jacobian at {section.source.name}"
        for done, signs, f in self._pass(index, [section], phase, part.done):
            _add(sums, section.core.batch_sums(section.read_outs(f), section.outputs(f), metric, signs))
            part.save(done, partial(_plain, sums))
        return section.core.gathered(sums, metric)

    @torch.no_grad()
    def _pass(
        self, index: int, sections: Sequence[Section], phase: str, start: int = 0
    ) -> Iterator[tuple[int, Tensor | None, Tensor]]:
        """(samples so far, signs for the outputs of some sections, activations at a node layer), in chunks.

        ``start`` samples are left out, for a pass that goes on where it was interrupted.
        """
        last_only = any(section.last_only for section in sections)
        longest = self.network.prefix(self.batches.first().to(self.network.device)).shape[1]
        for first, f in self._activations(index, phase, start):
            outputs = 1 if last_only else f.shape[1]
            signs = None
            if self.sources is not None and outputs > 1:
                key, most = ("jacobian", self.seed, index), longest * self.sources
                signs = random_signs(key, first, len(f), outputs * self.sources, most)
                signs = signs.view(len(f), outputs, self.sources).to(f)
            yield first + len(f) - self.batches.offset, signs, f

    @torch.no_grad()
    def _activations(self, index: int, phase: str, start: int = 0) -> Iterator[tuple[int, Tensor]]:
        """(index of the first sample, activations at a node layer) over the data, in chunks."""
        for first, inputs in chunks(self.network, self.batches, fine=True, start=start):
            if self.streams is None:
                yield first, self.network.activations_at(index, inputs)
            else:
                yield first, self.streams.activations_at(index, first - self.batches.offset, inputs)
            self.progress(phase, first + len(inputs) - self.batches.offset, len(self.batches))


def _add(sums: dict[str, Tensor], more: dict[str, Tensor], weight: float = 1.0) -> None:
    """Add a batch's sums to those of all, which are float64."""
    for name, total in more.items():
        if name in sums:
            sums[name].add_(total, alpha=weight)
        else:
            sums[name] = weight * total.double()


def _plain(sums: dict[str, Tensor]) -> State:
    return sums, {}


def _numbered(totals: list[Tensor]) -> State:
    return {str(k): total for k, total in enumerate(totals)}, {}


def _reads_only(section: Section) -> bool:
    """Whether a section sees its source through its read-outs alone, and they are fewer than coordinates."""
    first = 1 if section.source.constant else 0
    return not section.skip[:, first:].any() and len(section.read) < section.source.width


def _stages(sections: Sequence[Section], narrow: Sequence[bool]) -> list[Callable[[Tensor], list[Tensor]]]:
    """For every section, f ↦ [stage, next f]; the stage is f, or u = A f where that is narrower."""

    def whole(section: Section) -> Callable[[Tensor], list[Tensor]]:
        return lambda f: [f, section(f)]

    def read_first(section: Section) -> Callable[[Tensor], list[Tensor]]:
        def step(f: Tensor) -> list[Tensor]:
            u = section.read_outs(f)
            return [u, section.from_read_outs(f, u)]

        return step

    return [read_first(s) if n else whole(s) for s, n in zip(sections, narrow, strict=True)]


def assemble(
    section: Section, transform: Tensor | None, write: Tensor, moments: Moments, outputs: int, inputs: int
) -> JacobianGram:
    """The identity at the head of this file, divided by the number of input positions, on the CPU."""
    first = 1 if section.source.constant else 0
    skip = section.skip.double()
    P = (skip if transform is None else transform @ skip)[:, first:].cpu()  # [r, w]
    A = section.read.double()[:, first:].cpu()  # [c_in, w]
    cross = (write @ moments.local).cpu()  # [r, c_in]
    inner = moments.gram.cpu()
    used = P.any(dim=1)
    P, cross = P[used], cross[used]
    if len(P) + len(A) < A.shape[1]:
        X = torch.cat([P, A])
        diagonal = outputs * torch.eye(len(P), dtype=torch.float64)
        K = torch.cat([torch.cat([diagonal, cross], 1), torch.cat([cross.T, inner], 1)])
        return JacobianGram(X, K / inputs)
    mixed = P.T @ cross @ A
    K = outputs * P.T @ P + mixed + mixed.T + A.T @ inner @ A
    sizes = torch.cat([torch.full((len(P),), float(outputs), dtype=torch.float64), inner.diagonal()])
    terms = torch.cat([P, A]), sizes / inputs
    return JacobianGram(torch.eye(len(K), dtype=torch.float64), K / inputs, terms=terms)
