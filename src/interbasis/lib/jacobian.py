"""The Gram of a section's Jacobian, M′ = (1/nT) Σ JᵀG_outJ, without ever forming a Jacobian.

For F(f) = P f + B · core(A f) and next-layer features C f′, with Ĉ = C_out, N = ∂core/∂u and Q = BᵀĈᵀĈB,

    Σ JᵀĈᵀĈJ = n (ĈP)ᵀ(ĈP) + sym( (ĈP)ᵀ ĈB · ΣN_ss · A ) + Aᵀ (Σ_st N_stᵀQN_st) A,

n being the number of output positions in the data and T the number of *input* positions. The two sums come
from the core: from statistics collected once, or from a pass over the data where they depend on Q.

Where query positions are sampled, M′ is known up to an error, and so are the next features: their Gram ĈᵀĈ
may be off by ĈᵀEĈ. M′ is linear in that Gram, so the same identity with E in the middle carries it on.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from interbasis.base.devices import double, near_sums, sums_device
from interbasis.base.progress import Progress, silent
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoint, Checkpoints, State
from interbasis.compute.team import Pass
from interbasis.data.batches import Batches
from interbasis.lib.activation_cache import ActivationCache
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.statistics import Statistics, chunks
from interbasis.network.cores import PassCore, SamplesQueries, Sums
from interbasis.network.jacobian_gram import JacobianGram
from interbasis.network.network import Network, Section
from interbasis.numerics import autograd
from interbasis.numerics.random_signs import random_positions, random_signs

TO_END = "Jacobians to the end"
"""The pass that GIB makes."""


def pass_name(layer: str) -> str:
    """The pass for the Jacobian from a node layer to the next."""
    return f"Jacobian at {layer}"


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
    counted: CountedTokens = ALL_TOKENS
    """The tokens that count, as in the statistics."""
    first: int = 0
    """The number of the network's first section in a larger one that it is cut from, for random numbers."""

    def to_next(self, index: int, transform: Tensor | None, deviation: Tensor | None = None) -> JacobianGram:
        """From node layer ``index`` to the features C [r, d] of the one after it; None is the identity.

        ``deviation`` E [r, r] says how far CᵀC may be off, by CᵀEC, where that was sampled.
        """
        section = self.network.sections[index]
        jacobian = section.jacobian(transform)
        source, pairs = self.statistics.layers[index], self.statistics.pairs[index]
        metrics = [jacobian.metric]
        if deviation is not None:
            deviation = deviation.to(jacobian.write)
            metrics.append(jacobian.weighted_metric(deviation))

        def gram(sums: Sums, metric: Tensor, weight: Tensor | None = None) -> JacobianGram:
            return jacobian.gram_from_sums(sums, metric, pairs, source.count, weight)

        sums = [self.statistics.cores[index]] * len(metrics)
        if isinstance(section.core, PassCore):
            if self._samples(section, source.count):
                return self._sampled(index, section, metrics, deviation, gram)
            metrics = [self._rounded(metric) for metric in metrics]
            sums = self._sums_by_metric(index, section, metrics)
            metrics = [near_sums(metric) for metric in metrics]
        if deviation is None:
            return gram(sums[0], metrics[0])
        return replace(gram(sums[0], metrics[0]), noise=gram(sums[1], metrics[1], deviation).K)

    def to_next_freeing_sums(
        self, index: int, transform: Tensor | None, deviation: Tensor | None = None
    ) -> JacobianGram:
        """`to_next`, after which the sums of the section's core are emptied, since they may be large.

        It cannot be called twice for one layer.
        """
        gram = self.to_next(index, transform, deviation)
        self.statistics.cores[index] = {}
        return gram

    def _samples(self, section: Section, tokens: int) -> bool:
        """Whether queries are sampled: where that is fewer than there are."""
        if self.queries is None or not isinstance(section.core, SamplesQueries) or section.last_only:
            return False
        return self.queries < tokens / self.statistics.samples

    def _sampled(
        self,
        index: int,
        section: Section,
        metrics: Sequence[Tensor],
        deviation: Tensor | None,
        gram: Callable[[Sums, Tensor, Tensor | None], JacobianGram],
    ) -> JacobianGram:
        """The mean of two independent estimates, from a and b of the queries, and one draw of its error.

        The mean has the weights a and b over a + b; √(ab)/(a + b) times their difference varies as it does.
        Each half has its own features after it, CᵀC + √(b/a) CᵀEC and CᵀC − √(a/b) CᵀEC. Both are unbiased,
        and their difference has the errors of all layers in it.
        """
        a, b = self._half_counts
        up, down, draw = math.sqrt(b / a), math.sqrt(a / b), math.sqrt(a * b) / (a + b)
        if deviation is None:
            pair = [metrics[0]] * 2
            weights: list[Tensor | None] = [None, None]
        else:
            identity = torch.eye(len(deviation)).to(deviation)
            pair = [metrics[0] + up * metrics[1], metrics[0] - down * metrics[1]]
            weights = [identity + up * deviation, identity - down * deviation]
        pair = [self._rounded(metric) for metric in pair]
        halves = self._over_blocks(index, lambda block: block._half_sums(index, section, pair))
        first, second = (
            gram(_numbered(halves, k), near_sums(metric), weight)
            for k, (metric, weight) in enumerate(zip(pair, weights, strict=True))
        )
        mean = a / (a + b) * first.K + b / (a + b) * second.K
        return JacobianGram(first.X, mean, draw * (first.K - second.K), first.terms)

    @property
    def _half_counts(self) -> tuple[int, int]:
        """Queries of the two halves; of an odd number the first has one more."""
        queries = self.queries or 0
        return queries - queries // 2, queries // 2

    def _half_sums(self, index: int, section: Section, metrics: Sequence[Tensor]) -> dict[str, Tensor]:
        core, phase = section.core, pass_name(section.source.name)
        assert isinstance(core, SamplesQueries)
        checkpoint = self._checkpoint(f"jacobian_halves.{index}")
        sums = self._restored(checkpoint)
        for first, f in self.activations(index, phase, checkpoint, lambda: (sums, {})):
            u, positions = section.read_outs(f), f.shape[1]
            counted = self.counted.of_section(self.network, index, f)
            halves = zip(("queries", "other queries"), self._half_counts, strict=True)
            for half, (purpose, count) in enumerate(halves):
                key = (purpose, self.seed, self.first + index)
                queries = random_positions(key, first, len(f), count, positions).to(f.device)
                batch = core.sums_at(u, queries, metrics[half], counted)
                weight = positions / queries.shape[1]
                _add(sums, {f"{name}.{half}": total for name, total in batch.items()}, weight)
        return sums

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
        narrow = [section.is_narrow for section in network.sections]
        sums = self._over_blocks(None, lambda block: block._end_sums(transform, narrow))
        for index in reversed(range(last)):
            section, count = network.sections[index], self.statistics.layers[index].count
            gram, first = sums[str(index)].cpu() / count, section.source.first_coordinate
            if narrow[index]:
                result.insert(0, JacobianGram(section.read.cpu().double()[:, first:], gram))
            else:
                result.insert(0, JacobianGram(None, gram[first:, first:]))
        return result

    def _end_sums(self, transform: Tensor, narrow: Sequence[bool]) -> dict[str, Tensor]:
        """Grams of the Jacobians to the end, by the number of the section."""
        network, checkpoint = self.network, self._checkpoint("jacobian.end")
        sums = self._restored(checkpoint)
        mixing = any(
            section.core.mixes_positions or section.last_only or not section.reads_per_position
            for section in network.sections
        )
        for signs, f in self._pass(0, network.sections, TO_END, checkpoint, lambda: (sums, {})):
            counted = self._counted_to_end(f)
            if not mixing:  # every token by itself: one backward pass per coordinate does for all
                signs, f = None, f.flatten(0, 1)[:, None]
                counted = counted and [mask.flatten()[:, None] for mask in counted]
            grams = autograd.grams_to_end(_stages(network.sections, narrow), f, transform, signs, counted)
            for k, gram in enumerate(grams):
                sums[str(k)] = sums[str(k)] + double(gram) if str(k) in sums else double(gram)
        return sums

    def _counted_to_end(self, f: Tensor) -> list[Tensor] | None:  # [n, T] each
        """Which tokens count at every node layer; None is all of them."""
        if self.counted.all:
            return None
        masks, nodes = [self.counted.at(0, self.network.nodes[0], f)], self.network.nodes
        for k, section in enumerate(self.network.sections):
            f = section(f)
            masks.append(self.counted.at(k + 1, nodes[k + 1], f))
        return masks

    def _sums_by_metric(self, index: int, section: Section, metrics: Sequence[Tensor]) -> list[Sums]:
        """Sums of a `PassCore` for several metrics, from one pass."""
        sums = self._over_blocks(index, lambda block: block._block_sums(index, section, metrics))
        return [_numbered(sums, k) for k in range(len(metrics))]

    def _block_sums(self, index: int, section: Section, metrics: Sequence[Tensor]) -> dict[str, Tensor]:
        """The same over some of the data, as NAME.METRIC."""
        checkpoint = self._checkpoint(f"jacobian_moments.{index}")
        sums = self._restored(checkpoint)
        phase = pass_name(section.source.name)
        for signs, f in self._pass(index, [section], phase, checkpoint, lambda: (sums, {})):
            u, outputs = section.read_outs(f), section.outputs(f)
            counted = self.counted.of_section(self.network, index, f)
            if counted is not None and not section.core.mixes_positions:
                u, outputs, signs, counted = u[counted.both][:, None], slice(0, 1), None, None
            for k, metric in enumerate(metrics):
                batch = section.batch_sums(u, outputs, metric, signs, counted)
                _add(sums, {f"{name}.{k}": total for name, total in batch.items()})
        return sums

    def _over_blocks(
        self, index: int | None, sums: "Callable[[Jacobians], dict[str, Tensor]]"
    ) -> dict[str, Tensor]:
        """Sums over all blocks of the data, from a node layer to the next; from all to the end for None."""
        blocks = self.batches.blocks()

        def of_block(number: int) -> State:
            return sums(replace(self, batches=blocks[number])), {}

        name = TO_END if index is None else pass_name(self.network.nodes[index].name)
        return self.batches.team.sums(Pass(name, len(blocks), of_block, added))[0][0]

    def _rounded(self, metric: Tensor) -> Tensor:
        """As the network computes, where it computes."""
        return metric.to(self.network.device, self.network.dtype)

    def _restored(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        """The sums of unfinished work, where they are kept."""
        home = sums_device(self.network.device)
        return {name: saved.to(home) for name, saved in checkpoint.tensors.items()}

    def _checkpoint(self, name: str) -> Checkpoint:
        return self.checkpoints.checkpoint(name + self.batches.mark, len(self.batches))

    @torch.no_grad()
    def _pass(
        self,
        index: int,
        sections: Sequence[Section],
        phase: str,
        checkpoint: Checkpoint,
        state: Callable[[], State],
    ) -> Iterator[tuple[Tensor | None, Tensor]]:
        """(signs for the outputs of some sections, activations at a node layer) over the data, in chunks."""
        longest = self.network.prefix(self.batches.first().to(self.network.device)).shape[1]
        longest = _count_out([*self.network.sections[:index], *sections], longest)
        for first, f in self.activations(index, phase, checkpoint, state):
            outputs = _count_out(sections, f.shape[1])
            signs = None
            if self.sources is not None and outputs > 1:
                key, most = ("jacobian", self.seed, self.first + index), longest * self.sources
                signs = random_signs(key, first, len(f), outputs * self.sources, most)
                signs = signs.view(len(f), outputs, self.sources).to(f)
            yield signs, f

    @torch.no_grad()
    def activations(
        self, index: int, phase: str, checkpoint: Checkpoint, state: Callable[[], State]
    ) -> Iterator[tuple[int, Tensor]]:
        """(index of the first sample, activations at a node layer) over the data, in chunks.

        It resumes at the checkpoint, and saves the state there after every chunk.
        """
        batches, save = self.batches, partial(checkpoint.save, state=state)
        some = chunks(self.network, batches, fine=True, start=checkpoint.done)
        for first, inputs in batches.tracked(some, phase, self.progress, save):
            if self.streams is None:
                yield first, self.network.activations_at(index, inputs)
            else:
                yield first, self.streams.activations_at(index, first - batches.origin, inputs)


def added(one: State, other: State) -> State:
    """Two states whose tensors are sums, as one; values are none."""
    sums: dict[str, Tensor] = {}
    for tensors, _ in (one, other):
        _add(sums, tensors)
    return sums, {}


def _add(sums: dict[str, Tensor], more: dict[str, Tensor], weight: float = 1.0) -> None:
    """Add a batch's sums to those of all, which are float64."""
    for name, total in more.items():
        if name in sums:
            sums[name].add_(near_sums(total), alpha=weight)
        else:
            sums[name] = weight * double(total)


def _count_out(sections: Sequence[Section], positions: int) -> int:
    """Positions that come out of some sections in a row."""
    for section in sections:
        positions = section.count_out(positions)
    return positions


def _numbered(sums: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """Those called name.number, by name."""
    end = f".{number}"
    return {name.removesuffix(end): total for name, total in sums.items() if name.endswith(end)}


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
