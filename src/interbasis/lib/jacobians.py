"""Gram matrices of Jacobians, M′ = (1/nT) Σ JᵀĈᵀĈJ, without ever forming a Jacobian.

For a section F(f) = P f + B · core(A f), features Ĉ [r, d] of the next layer, N = ∂core/∂u and Q = BᵀĈᵀĈB,

    Σ JᵀĈᵀĈJ = n (ĈP)ᵀ(ĈP) + sym( (ĈP)ᵀ ĈB · ΣN_ss · A ) + Aᵀ (Σ_st N_stᵀQN_st) A,

n being the number of output positions in the data and T the number of *input* positions
(`network/section_jacobian.py`). The two sums come from the core:

1. from the statistics of the data, collected in one pass for all sections (`statistics.py`);
2. from a pass over the data, where they depend on Q (attention): `MetricSums`;
3. from a sample of the query positions of that pass (`QuerySums`) or of the samples (`GroupSums`, and
   statistics by group), in independent parts. M′ is then known up to an error, and so are the next features:
   their Gram ĈᵀĈ may be off by ĈᵀEĈ. M′ is linear in that Gram, so the same identity with E in the middle
   carries the error on.

The Jacobians to the last layer, for GIB, are summed by automatic differentiation: `EndGrams`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from interbasis.base.devices import near_sums
from interbasis.compute.executor import Chunk, Executor, SumsPass, add_sums
from interbasis.data.batches import Batches
from interbasis.graph.settings import JACOBIAN_GROUPS, BuildConfig
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.lib.statistics import Statistics
from interbasis.network.cores import Counted, PassCore, SamplesQueries, Sums
from interbasis.network.jacobian_gram import JacobianGram
from interbasis.network.network import Network, Section
from interbasis.numerics import autograd
from interbasis.numerics.random_signs import random_positions, random_signs

TO_END = "Jacobians to the end"
"""Name of the pass that GIB makes."""


def pass_name(layer: str) -> str:
    """Name of the pass for the Jacobian from a node layer to the next."""
    return f"Jacobian at {layer}"


@dataclass(frozen=True)
class Jacobians:
    """Jacobian Grams of a network over data."""

    executor: Executor
    """Runs passes over the data; its network is the one that is differentiated."""
    statistics: Statistics
    """Statistics of the same data, with the cores' sums."""
    data: Batches
    groups: Sequence[Statistics] = ()
    """Statistics of groups of the samples drawn, where not all are looked at; they hold the cores' sums."""
    counted: CountedTokens = ALL_TOKENS
    """The tokens that count, as in the statistics."""
    config: BuildConfig = field(default_factory=BuildConfig)
    """Whether sums over positions are sampled (``jacobian_sources``, ``jacobian_queries``), and the seed."""
    first: int = 0
    """Number of the network's first section in a larger one that it is cut from, for random numbers."""
    frees_sums: bool = False
    """Whether a core's sums, which may be large, are emptied once M′ is known: it is then computed once."""

    @property
    def network(self) -> Network:
        return self.executor.network

    @cached_property
    def drawn_data(self) -> Batches:
        """The samples that attention's Jacobians are averaged over."""
        count, seed = self.config.jacobian_samples, self.config.seed
        if self.groups:
            most = self.statistics.samples
            return self.data.drawn(most if count is None else min(count, most), seed)
        return self.data if count is None or count >= len(self.data) else self.data.drawn(count, seed)

    @property
    def unseen_share(self) -> float:
        """Share of the variance between samples that remains where samples are drawn without replacement.

        With sampled queries too, all of it: the variance within samples does not become smaller.
        """
        if self.drawn_data is self.data or self.config.jacobian_queries is not None:
            return 1.0
        return 1 - len(self.drawn_data) / len(self.data)

    def to_next(self, index: int, transform: Tensor | None, deviation: Tensor | None = None) -> JacobianGram:
        """M′ from node layer ``index`` to the features Ĉ [r, d] of the next one; None is the identity.

        ``deviation`` E [draws, r, r] says how far ĈᵀĈ may be off, by ĈᵀEĈ, where that was sampled.
        """
        with self.executor.clock("Jacobians"):
            gram = self._to_next(index, transform, deviation)
        if self.frees_sums:
            for statistics in self.groups or (self.statistics,):
                statistics.cores[index] = {}
        return gram

    def variance_deviations(self, index: int, transform: Tensor) -> Tensor | None:  # [K, r]
        """Relative deviations of the variances of features C [r, w] in K groups, over √(K(K − 1)).

        Their squares add up to the relative variance of the mean over the groups; None without groups.
        """
        if not self.groups:
            return None
        grams = [group.layers[index].gram for group in self.groups]
        variances = torch.stack([(transform @ gram * transform).sum(1) for gram in grams])
        mean, count = variances.mean(0), len(grams)
        return (variances / mean.clamp_min(torch.finfo(mean.dtype).tiny) - 1) / math.sqrt(count * (count - 1))

    def _to_next(self, index: int, transform: Tensor | None, E: Tensor | None) -> JacobianGram:
        section, source = self.network.sections[index], self.statistics.layers[index]
        jacobian = section.jacobian(transform)
        metrics: list[Tensor] = [jacobian.metric]
        if E is not None:
            E = E.to(jacobian.write)
            metrics += [jacobian.weighted_metric(draw) for draw in E]

        def gram(sums: Sums, metric: Tensor, weight: Tensor | None = None) -> JacobianGram:
            outputs = self.statistics.pairs[index]
            return jacobian.gram_from_sums(sums, near_sums(metric), outputs, source.count, weight)

        if self.groups or (isinstance(section.core, PassCore) and self.drawn_data is not self.data):
            return self._from_groups(index, metrics, E, gram)
        sums = [self.statistics.cores[index]] * len(metrics)
        if isinstance(section.core, PassCore):
            if self._samples_queries(section, source.count):
                return self._from_queries(index, metrics, E, gram)
            metric_sums = MetricSums(self, index, metrics)
            metrics, sums = metric_sums.metrics, metric_sums.by_metric()
        result = gram(sums[0], metrics[0])
        if E is None:
            return result
        draws = [gram(*parts).K for parts in zip(sums[1:], metrics[1:], E, strict=True)]
        return replace(result, noise=torch.stack(draws))

    def to_end(self, transform: Tensor) -> list[JacobianGram]:
        """M′ from every node layer to the features Ĉ [r, d] of the last one, by automatic differentiation.

        The last section alone has its closed form; all other layers share one pass over the data. A layer
        that is read through A alone has M′ = Aᵀ K A with K the Gram of the Jacobian by u = A f.
        """
        sections = self.network.sections
        result = [self.to_next(len(sections) - 1, transform)]
        if len(sections) == 1:
            return result
        with self.executor.clock("Jacobians"):
            sums = self.executor.run(EndGrams(self, transform), self.data)
        for index in reversed(range(len(sections) - 1)):
            section, count = sections[index], self.statistics.layers[index].count
            gram, first = sums[str(index)].cpu() / count, section.source.first_coordinate
            if section.is_narrow:
                result.insert(0, JacobianGram(section.read.cpu().double()[:, first:], gram))
            else:
                result.insert(0, JacobianGram(None, gram[first:, first:]))
        return result

    def _samples_queries(self, section: Section, tokens: int) -> bool:
        """Whether queries are sampled: where that is fewer than there are."""
        queries = self.config.jacobian_queries
        if queries is None or not isinstance(section.core, SamplesQueries) or section.last_only:
            return False
        return queries < tokens / self.statistics.samples

    def _from_queries(
        self,
        index: int,
        metrics: Sequence[Tensor],
        E: Tensor | None,
        gram: Callable[[Sums, Tensor, Tensor | None], JacobianGram],
    ) -> JacobianGram:
        """Mean of two independent estimates, from a and b of the queries, and one draw of its error.

        The mean has the weights a and b over a + b; √(ab)/(a + b) times their difference varies as it does.
        Each half has its own features after it, ĈᵀĈ + √(b/a) ĈᵀEĈ and ĈᵀĈ − √(a/b) ĈᵀEĈ. Both are unbiased,
        and their difference has the errors of all layers in it.
        """
        a, b = half_sizes(self.config)
        up, down, draw = math.sqrt(b / a), math.sqrt(a / b), math.sqrt(a * b) / (a + b)
        if E is None:
            pair = [metrics[0]] * 2
            weights: list[Tensor | None] = [None, None]
        else:
            identity = torch.eye(E.shape[1]).to(E)
            pair = [metrics[0] + up * metrics[1], metrics[0] - down * metrics[1]]
            weights = [identity + up * E[0], identity - down * E[0]]
        halves = QuerySums(self, index, pair)
        first, second = map(gram, halves.by_metric(), halves.metrics, weights)
        mean = a / (a + b) * first.K + b / (a + b) * second.K
        return JacobianGram(first.X, mean, (draw * (first.K - second.K))[None], first.terms)

    def _from_groups(
        self,
        index: int,
        metrics: Sequence[Tensor],
        E: Tensor | None,
        gram: Callable[[Sums, Tensor, Tensor | None], JacobianGram],
    ) -> JacobianGram:
        """Mean of independent estimates from groups of the samples drawn, and their deviations from it.

        With K groups, deviations divided by √(K(K − 1)) have squares that add up to the variance of the mean.
        Every group has its own features after it, whose Gram is ĈᵀĈ + √(K(K − 1)) ĈᵀE_kĈ.
        """
        count = len(self.groups) or min(JACOBIAN_GROUPS, len(self.drawn_data))
        scale = math.sqrt(count * (count - 1))
        weights: list[Tensor | None] = [None] * count
        by_group = [metrics[0]] * count
        if E is not None:
            identity = torch.eye(E.shape[1]).to(E)
            weights = [identity + scale * draw for draw in E]
            by_group = [metrics[0] + scale * metric for metric in metrics[1:]]
        if isinstance(self.network.sections[index].core, PassCore):
            groups = GroupSums(self, index, by_group)
            sums, by_group = groups.by_metric(), groups.metrics
        else:
            sums = [group.cores[index] | {"pairs": torch.tensor(group.pairs[index])} for group in self.groups]
        for group in sums:
            weight = self.statistics.pairs[index] / group.pop("pairs")
            group.update({name: weight * total for name, total in group.items()})
        grams = list(map(gram, sums, by_group, weights))
        estimates = torch.stack([part.K for part in grams])
        mean = estimates.mean(0)
        deviations = estimates - mean
        return JacobianGram(grams[0].X, mean, deviations / scale, grams[0].terms)


def half_sizes(config: BuildConfig) -> tuple[int, int]:
    """Queries of two independent estimates; of an odd number the first has one more."""
    queries = config.jacobian_queries or 0
    return queries - queries // 2, queries // 2


class JacobianPass(SumsPass):
    """Sums for the Jacobians of a network from one node layer on."""

    def __init__(self, jacobians: Jacobians, index: int, file: str):
        self.jacobians, self.network, self.counted = jacobians, jacobians.network, jacobians.counted
        self.config, self.number, self.index = jacobians.config, jacobians.first + index, index
        self.name = self.phase = pass_name(self.network.nodes[index].name)
        self.file = f"{file}.{index}"
        self.longest = self.network.prefix(jacobians.data.first().to(self.network.device)).shape[1]

    def signs(self, chunk: Chunk, f: Tensor, sections: Sequence[Section]) -> Tensor | None:
        """Random signs [n, outputs, sources] for the outputs of sections in a row; None is exact."""
        sources, outputs = self.config.jacobian_sources, _count_out(sections, f.shape[1])
        if sources is None or outputs <= 1:
            return None
        longest = _count_out([*self.network.sections[: self.index], *sections], self.longest)
        key = ("jacobian", self.config.seed, self.number)
        signs = random_signs(key, chunk.first, len(f), outputs * sources, longest * sources)
        return signs.view(len(f), outputs, sources).to(f)


class MetricSums(JacobianPass):
    """ΣN_ss and Σ N_stᵀQN_st of one section for several metrics Q, as NAME.METRIC."""

    kind = "jacobian_moments"

    def __init__(self, jacobians: Jacobians, index: int, metrics: Sequence[Tensor]):
        super().__init__(jacobians, index, self.kind)
        self.section = self.network.sections[index]
        self.metrics = [metric.to(self.network.device, self.network.dtype) for metric in metrics]

    def by_metric(self) -> list[Sums]:
        """The sums over all data for each metric."""
        sums = self.jacobians.executor.run(self, self.jacobians.drawn_data)
        return [
            {name.removesuffix(f".{k}"): total for name, total in sums.items() if name.endswith(f".{k}")}
            for k in range(len(self.metrics))
        ]

    def update(self, state: Sums, chunk: Chunk) -> None:
        section, f = self.section, chunk.activations_at(self.index)
        signs = self.signs(chunk, f, [section])
        u, outputs = section.read_outs(f), section.outputs(f)
        counted = self.counted.at_section(self.network, self.index, f)
        if counted is not None and not section.core.mixes_positions:
            u, outputs, signs, counted = _as_samples(u, counted)
        for k, metric in enumerate(self.metrics):
            batch = section.batch_sums(u, outputs, metric, signs, counted)
            add_sums(state, {f"{name}.{k}": total for name, total in batch.items()})


class QuerySums(MetricSums):
    """Sums from two independent samples of the queries, a metric each."""

    kind = "jacobian_halves"

    def update(self, state: Sums, chunk: Chunk) -> None:
        f, core = chunk.activations_at(self.index), self.section.core
        assert isinstance(core, SamplesQueries)
        u, positions = self.section.read_outs(f), f.shape[1]
        counted = self.counted.at_section(self.network, self.index, f)
        purposes, sizes = ("queries", "other queries"), half_sizes(self.config)
        for half, (purpose, count) in enumerate(zip(purposes, sizes, strict=True)):
            key = (purpose, self.config.seed, self.number)
            queries = random_positions(key, chunk.first, len(f), count, positions).to(f.device)
            batch = core.sums_at(u, queries, self.metrics[half], counted)
            named = {f"{name}.{half}": total for name, total in batch.items()}
            add_sums(state, named, positions / queries.shape[1])


class GroupSums(MetricSums):
    """Sums over groups of samples, a metric each, and their counts of positions; sample i is in i mod K."""

    kind = "jacobian_groups"

    def __init__(self, jacobians: Jacobians, index: int, metrics: Sequence[Tensor]):
        super().__init__(jacobians, index, metrics)
        self.file += f".{len(jacobians.drawn_data)}"

    def update(self, state: Sums, chunk: Chunk) -> None:
        f = chunk.activations_at(self.index)
        signs = self.signs(chunk, f, [self.section])
        u, counted = self.section.read_outs(f), self.counted.at_section(self.network, self.index, f)
        queries, count = self._queries(chunk, f), len(self.metrics)
        for group, metric in enumerate(self.metrics):
            rows = slice((group - chunk.first) % count, None, count)
            if not len(u[rows]):
                continue
            masks = None if counted is None else Counted(*(mask[rows] for mask in counted))
            inputs, outputs, group_signs = (
                u[rows],
                self.section.outputs(f),
                signs if signs is None else signs[rows],
            )
            pairs = len(inputs) * (outputs.stop - outputs.start) if masks is None else int(masks.both.sum())
            add_sums(state, {f"pairs.{group}": torch.tensor(pairs)})
            if queries is not None and isinstance(self.section.core, SamplesQueries):
                batch = self.section.core.sums_at(inputs, queries[rows], metric, masks)
            else:
                if masks is not None and not self.section.core.mixes_positions:
                    inputs, outputs, group_signs, masks = _as_samples(inputs, masks)
                batch = self.section.batch_sums(inputs, outputs, metric, group_signs, masks)
            weight = 1.0 if queries is None else f.shape[1] / queries.shape[1]
            add_sums(state, {f"{name}.{group}": total for name, total in batch.items()}, weight)

    def _queries(self, chunk: Chunk, f: Tensor) -> Tensor | None:  # [n, Q]
        """The query positions that are looked at; None is all of them."""
        count, section = self.config.jacobian_queries, self.section
        if count is None or count >= f.shape[1] or section.last_only:
            return None
        if not isinstance(section.core, SamplesQueries):
            return None
        key = ("queries", self.config.seed, self.number)
        return random_positions(key, chunk.first, len(f), count, f.shape[1]).to(f.device)


def _as_samples(u: Tensor, counted: Counted) -> tuple[Tensor, slice, None, None]:  # [n, T, c_in]
    """Read-outs of the tokens that count, each a sample by itself, where positions do not mix."""
    return u[counted.both][:, None], slice(0, 1), None, None


class EndGrams(JacobianPass):
    """Grams of the Jacobians from every node layer to the features Ĉ [r, d] of the last, by section."""

    def __init__(self, jacobians: Jacobians, transform: Tensor):
        super().__init__(jacobians, 0, "jacobian")
        self.name, self.phase, self.file = TO_END, TO_END, "jacobian.end"
        self.transform = transform.to(self.network.device, self.network.dtype)
        self.mixes = any(
            section.core.mixes_positions or section.last_only or not section.reads_per_position
            for section in self.network.sections
        )

    def update(self, state: Sums, chunk: Chunk) -> None:
        f, sections = chunk.activations_at(0), self.network.sections
        signs, counted = self.signs(chunk, f, sections), self._counted(f)
        if not self.mixes:  # every token by itself: one backward pass per coordinate does for all
            signs, f = None, f.flatten(0, 1)[:, None]
            counted = counted and [mask.flatten()[:, None] for mask in counted]
        steps = [_step(section) for section in sections]
        grams = autograd.grams_to_end(steps, f, self.transform, signs, counted)
        add_sums(state, {str(k): gram for k, gram in enumerate(grams)})

    def _counted(self, f: Tensor) -> list[Tensor] | None:  # [n, T] each
        """Masks of the tokens that count at every node layer; None is all tokens."""
        if self.counted.all:
            return None
        masks, nodes = [self.counted.at(0, self.network.nodes[0], f)], self.network.nodes
        for k, section in enumerate(self.network.sections):
            f = section(f)
            masks.append(self.counted.at(k + 1, nodes[k + 1], f))
        return masks


def _count_out(sections: Sequence[Section], positions: int) -> int:
    """Positions that come out of sections in a row."""
    for section in sections:
        positions = section.count_out(positions)
    return positions


def _step(section: Section) -> Callable[[Tensor], list[Tensor]]:
    """f ↦ [stage, next f]; the stage is f, or u = A f where that is narrower."""

    def whole(f: Tensor) -> list[Tensor]:
        return [f, section(f)]

    def read_first(f: Tensor) -> list[Tensor]:
        u = section.read_outs(f)
        return [u, section.from_read_outs(f, u)]

    return read_first if section.is_narrow else whole
