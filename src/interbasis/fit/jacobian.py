"""The Gram of a section's Jacobian, M′ = (1/nT) Σ JᵀG_outJ, without ever forming a Jacobian.

For F(f) = P f + B · core(A f) and next-layer features C f′, with Ĉ = C_out, N = ∂core/∂u and Q = BᵀĈᵀĈB,

    Σ JᵀĈᵀĈJ = n (ĈP)ᵀ(ĈP) + sym( (ĈP)ᵀ ĈB · ΣN_ss · A ) + Aᵀ (Σ_st N_stᵀQN_st) A,

n being the number of output positions in the data and T the number of *input* positions. The two sums come
from the core: from statistics collected once, or from a pass over the data where they depend on Q.

Where query positions are sampled, M′ is known up to an error, and so are the next features: their Gram ĈᵀĈ
may be off by ĈᵀEĈ. M′ is linear in that Gram, so the same identity with E in the middle carries it on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from interbasis.data.batches import Batches
from interbasis.fit.activation_cache import ActivationCache
from interbasis.fit.statistics import Statistics, chunks
from interbasis.network.cores import Moments
from interbasis.network.network import Network, Section
from interbasis.numerics import autograd
from interbasis.numerics.linalg import eigenbasis, right_singular_basis, square_root_factor
from interbasis.numerics.random_signs import random_positions, random_signs
from interbasis.runtime.checkpoints import NO_CHECKPOINTS, Checkpoints, State
from interbasis.runtime.progress import Progress, silent


@dataclass(frozen=True)
class JacobianGram:
    """M′ as a product Xᵀ K X, whose inner side may be smaller than the layer. The constant is left out."""

    X: Tensor  # [k, w]
    K: Tensor  # [k, k]
    noise: Tensor | None = None  # [k, k]
    """How far K may be off where query positions were sampled, here or in layers after this one: half the
    difference of two independent estimates, each made from half of the queries in all of these layers."""
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

    def deviations(self, directions: Tensor) -> Tensor | None:  # [r, w] -> [r, r]
        """x δM′ yᵀ for all pairs of rows; each is one draw from what sampling may do to x M′ yᵀ."""
        if self.noise is None:
            return None
        inner = directions @ self.X.T
        return inner @ self.noise @ inner.T


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
    checkpoints: Checkpoints = NO_CHECKPOINTS
    streams: ActivationCache | None = None
    """Where activations are kept between passes; None computes them again."""

    def to_next(self, index: int, transform: Tensor | None, deviation: Tensor | None = None) -> JacobianGram:
        """From node layer ``index`` to the features C [r, d] of the one after it; None is the identity.

        ``deviation`` E [r, r] says how far CᵀC may be off, by CᵀEC, where that was sampled.
        """
        section = self.network.sections[index]
        write = section.write.double()
        if transform is not None:
            transform = transform.to(self.network.device)
            write = transform @ write
        metric = write.T @ write
        source, target = self.statistics.layers[index : index + 2]
        metrics = [metric]
        if deviation is not None:
            deviation = deviation.to(write)
            metrics.append(write.T @ deviation @ write)

        def gram(moments: Moments, weight: Tensor | None = None) -> JacobianGram:
            return assemble(section, transform, write, moments, target.count, source.count, weight)

        if section.core.has_statistics:
            found = [section.core.moments(self.statistics.cores[index], metric) for metric in metrics]
        elif self._samples(section, source.count):
            return self._sampled(index, section, metrics, deviation, gram)
        else:
            found = self._moments(index, section, metrics)
        if deviation is None:
            return gram(found[0])
        return replace(gram(found[0]), noise=gram(found[1], deviation).K)

    def _samples(self, section: Section, tokens: int) -> bool:
        """Whether queries are sampled: where that is fewer than there are."""
        if self.queries is None or not section.core.samples_queries or section.last_only:
            return False
        return self.queries < tokens / self.statistics.samples

    def _sampled(
        self,
        index: int,
        section: Section,
        metrics: Sequence[Tensor],
        deviation: Tensor | None,
        gram: Callable[[Moments, Tensor | None], JacobianGram],
    ) -> JacobianGram:
        """The mean of two independent estimates and half their difference.

        Each has half of the queries, and its own half's features after it: one CᵀC + CᵀEC, the other
        CᵀC − CᵀEC. Both are unbiased, and their difference has the errors of all layers in it.
        """
        if deviation is None:
            one, other = (gram(half, None) for half in self._halves(index, section, [metrics[0]] * 2))
        else:
            identity = torch.eye(len(deviation)).to(deviation)
            pair = [metrics[0] + metrics[1], metrics[0] - metrics[1]]
            weights = identity + deviation, identity - deviation
            one, other = map(gram, self._halves(index, section, pair), weights)
        return JacobianGram(one.X, (one.K + other.K) / 2, (one.K - other.K) / 2, one.terms)

    def _halves(self, index: int, section: Section, pair: Sequence[Tensor]) -> list[Moments]:
        """Two independent estimates of the moments, from half of the queries each, with a metric each."""
        metrics, core = [metric.to(self.network.dtype) for metric in pair], section.core
        count = max(1, (self.queries or 2) // 2)
        checkpoint = self.checkpoints.checkpoint(f"jacobian_halves.{index}", len(self.batches))
        sums = {name: saved.to(metrics[0].device) for name, saved in checkpoint.tensors.items()}
        for first, f in self._activations(index, f"Jacobian at {section.source.name}", checkpoint.done):
            u, positions = section.read_outs(f), f.shape[1]
            for half, purpose in enumerate(("queries", "other queries")):
                key = (purpose, self.seed, index)
                at = random_positions(key, first, len(f), count, positions).to(f.device)
                found = core.sums_at(u, at, metrics[half])
                weight = positions / at.shape[1]
                _add(sums, {f"{name}.{half}": total for name, total in found.items()}, weight)
            checkpoint.save(first + len(f) - self.batches.offset, partial(_plain, sums))
        return [core.moments_from_sums(_numbered(sums, half), metric) for half, metric in enumerate(metrics)]

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
        checkpoint = self.checkpoints.checkpoint("jacobian.end", len(self.batches))
        totals = [checkpoint.tensors[str(k)] for k in range(len(checkpoint.tensors))]
        mixing = any(section.core.mixes_positions or section.last_only for section in network.sections)
        for done, signs, f in self._pass(0, network.sections, "Jacobians to the end", checkpoint.done):
            if not mixing:  # every token by itself: one backward pass per coordinate does for all
                signs, f = None, f.flatten(0, 1)[:, None]
            found = autograd.grams_to_end(_stages(network.sections, narrow), f, transform, signs)
            totals = [a + b for a, b in zip(totals, found, strict=True)] if totals else found
            checkpoint.save(done, partial(_listed, totals))
        for index in reversed(range(last)):
            section, count = network.sections[index], self.statistics.layers[index].count
            gram, first = totals[index].cpu() / count, 1 if section.source.constant else 0
            if narrow[index]:
                result.insert(0, JacobianGram(section.read.double().cpu()[:, first:], gram))
            else:
                identity = torch.eye(len(gram) - first, dtype=torch.float64)
                result.insert(0, JacobianGram(identity, gram[first:, first:]))
        return result

    def _moments(self, index: int, section: Section, metrics: Sequence[Tensor]) -> list[Moments]:
        """The moments for several metrics, from one pass."""
        metrics = [metric.to(self.network.dtype) for metric in metrics]
        checkpoint = self.checkpoints.checkpoint(f"jacobian_moments.{index}", len(self.batches))
        sums = {name: saved.to(metrics[0].device) for name, saved in checkpoint.tensors.items()}
        phase = f"Jacobian at {section.source.name}"
        for done, signs, f in self._pass(index, [section], phase, checkpoint.done):
            u, at = section.read_outs(f), section.outputs(f)
            for k, metric in enumerate(metrics):
                found = section.core.batch_sums(u, at, metric, signs)
                _add(sums, {f"{name}.{k}": total for name, total in found.items()})
            checkpoint.save(done, partial(_plain, sums))
        return [
            section.core.moments_from_sums(_numbered(sums, k), metric) for k, metric in enumerate(metrics)
        ]

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


def _numbered(sums: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """Those called name.number, by name."""
    end = f".{number}"
    return {name.removesuffix(end): total for name, total in sums.items() if name.endswith(end)}


def _listed(totals: list[Tensor]) -> State:
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
    section: Section,
    transform: Tensor | None,
    write: Tensor,
    moments: Moments,
    outputs: int,
    inputs: int,
    weight: Tensor | None = None,
) -> JacobianGram:
    """The identity at the head of this file, divided by the number of input positions, on the CPU.

    ``weight`` [r, r] stands between Ĉᵀ and Ĉ, in the metric that the moments were made with too.
    """
    first = 1 if section.source.constant else 0
    skip = section.skip.double()
    P = (skip if transform is None else transform @ skip)[:, first:].cpu()  # [r, w]
    A = section.read.double()[:, first:].cpu()  # [c_in, w]
    cross = (write @ moments.local).cpu()  # [r, c_in]
    inner = moments.gram.cpu()
    used = P.any(dim=1)
    if weight is not None:
        weight = weight.cpu()
        cross, weight = weight @ cross, weight[used][:, used]
    P, cross = P[used], cross[used]
    if len(P) + len(A) < A.shape[1]:
        X = torch.cat([P, A])
        skips = outputs * (torch.eye(len(P), dtype=torch.float64) if weight is None else weight)
        K = torch.cat([torch.cat([skips, cross], 1), torch.cat([cross.T, inner], 1)])
        return JacobianGram(X, K / inputs)
    mixed = P.T @ cross @ A
    K = outputs * P.T @ (P if weight is None else weight @ P) + mixed + mixed.T + A.T @ inner @ A
    sizes = torch.cat([torch.full((len(P),), float(outputs), dtype=torch.float64), inner.diagonal()])
    terms = torch.cat([P, A]), sizes / inputs
    return JacobianGram(torch.eye(len(K), dtype=torch.float64), K / inputs, terms=terms)
