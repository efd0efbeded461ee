"""Which edges into active features can go?

For a pair of dictionaries, edges are ranked by Ê and the N strongest are kept. At every token that counts,
the pre-activation of an active feature i of the second dictionary is then

    û_i = u_i − Σ_{j dropped} (A_ij − Ā_ij),

A_ij the attribution to feature j at that token (0 where j is inactive) and Ā_ij its mean over the tokens of
the build where i is active; edges that the graph does not store are always dropped. Error, carried streams,
constant and what the rule of integration leaves over stay. ẑ_i is û_i where it is above the
threshold, else 0; which features are active is not chosen again. The stream becomes
x + Σ_i (ẑ_i − z_i) W_d,i, the network runs on from there, and the metric is its own cross-entropy or accuracy
on the data.

Edges required are the fewest from which on every larger number that was tried stays within the tolerance. All
numbers of a grid are tried in one pass over the data, then those of a finer grid below the answer. Beside
them stands the same for edges in random order. With ``robust``, an opponent may restore dropped edges: those
whose restoration raises the loss, to first order; the count must survive that, too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from interbasis.analysis.ablation.evaluation import (
    Score,
    as_metric,
    default_metric,
    passes,
    sample_losses,
    worst_allowed,
)
from interbasis.analysis.ablation.search import DEFAULT_TOLERANCE
from interbasis.analysis.stored_results import DataUsed, Result
from interbasis.analysis.workspace import collect_records
from interbasis.base.devices import double
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, progress_bar
from interbasis.base.records import Metric, NonEmptyNames, Record
from interbasis.compute.checkpoints import Checkpoints, State
from interbasis.compute.executor import chunk_size
from interbasis.data.batches import Batches, Data
from interbasis.dictionaries.edge_sums import (
    AttributionBlock,
    DictionaryEdgeSettings,
    LayerTokens,
    PairOfDictionaries,
    activations_between,
)
from interbasis.dictionaries.graph import FeatureStatistics, SparseEdges
from interbasis.dictionaries.layers import REMAINDERS
from interbasis.network.network import Network
from interbasis.numerics.integration import rule

if TYPE_CHECKING:
    from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace

GRID = 12
"""Numbers of edges that are tried in one pass over the data."""
ROBUST_STEP = 2.0
"""Factor between the numbers of edges that are tried against an opponent."""


class DictionaryAblateRequest(Record):
    """Request for the edges into active features that a network's answers require."""

    data: str | None = None
    """Data to evaluate on; default: the test set of what the run was built on."""
    metric: Metric | None = None
    """accuracy or cross_entropy; default: cross_entropy for language models, else accuracy."""
    tolerance: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Largest loss of accuracy, or increase of cross-entropy; default: 0.001 or 0.1."""
    sections: NonEmptyNames | None = None
    """Places of source dictionaries; default: all pairs."""
    robust: bool = False
    """Add counts that survive an opponent who restores dropped edges."""
    seed: int = Field(0, ge=0)
    """Seed of the random order beside Ê's."""


class KeptEdges(Record):
    """Some edges kept, and the metric with them."""

    kept: int
    value: float
    """The metric."""
    error: float
    """Σ (û − u)² over Σ (u − ū)², ū the mean of a feature's pre-activation where it is active."""


class PairRequired(Record):
    """The fewest edges between two dictionaries that keep the metric."""

    source: str
    target: str
    stored: int
    """Edges that the graph stores, from which the strongest are kept."""
    count: int | None
    """Edges required: from there on every larger number that was tried passes; None: not even all pass."""
    epsilon: float | None
    """Ê of the weakest of them."""
    trials: tuple[KeptEdges, ...]
    """By Ê, in ascending order of the number kept."""
    random_count: int | None
    """Edges required in random order; None: not even all pass."""
    random_trials: tuple[KeptEdges, ...]
    robust_count: int | None = None
    """Edges required against an opponent, on a grid of powers of 2; None where it was not asked for."""
    opposed_value: float | None = None
    """The metric with ``count`` edges and those that the opponent restores."""


class DictionaryAblation(Result):
    """Edges into active features that are required, by the place of the source."""

    file: ClassVar[str] = "ablation"
    command: ClassVar[str] = "ablate"

    metric: Metric
    tolerance: float
    baseline: float
    """The metric of the original model."""
    limit: float
    """The metric that has to be met."""
    data: DataUsed
    pairs: dict[str, PairRequired]


def ablate_edges(workspace: "DictionaryWorkspace", request: DictionaryAblateRequest) -> DictionaryAblation:
    """Find the edges required between dictionaries, and store them.

    Raises:
        InterbasisError: A pair is unknown, or the data have no labels.
    """
    graph, network = workspace.graph, workspace.computing
    sources = graph.places[:-1]
    chosen = list(request.sections or sources)
    for name in chosen:
        if name not in sources:
            raise InterbasisError(f"no edges begin at {name!r}; expected one of {', '.join(sources)}")
    samples = workspace.data(request.data)
    data = EvaluatedData.from_data(network, samples, request.metric)
    metric = data.baseline.metric
    tolerance = DEFAULT_TOLERANCE[metric] if request.tolerance is None else request.tolerance
    limit, used = worst_allowed(data.baseline, tolerance), DataUsed.from_data(samples)
    config = graph.header.config
    settings = DictionaryEdgeSettings(rule(config.edge_method, config.edge_points), counted=workspace.counted)
    with (
        workspace.unfinished(DictionaryAblation, request=request, **used.fingerprints) as checkpoints,
        progress_bar(workspace.progress) as advance,
    ):

        def search(name: str) -> PairRequired:
            k = sources.index(name)
            source, target = workspace.layers[k : k + 2]
            pair = PairOfDictionaries(network, source, target, settings)
            masked = MaskedPair(data, pair, graph.edges[k], graph.statistics[k + 1], limit, advance)
            return masked.search(request.seed, request.robust, checkpoints.within(name))

        pairs = collect_records(workspace.team, chosen, search, PairRequired)
        result = DictionaryAblation(
            metric=metric, tolerance=tolerance, baseline=data.baseline.value, limit=limit, data=used,
            pairs=pairs,
        )  # fmt: skip
        workspace.store(result)
    return result


@dataclass(frozen=True, eq=False)
class EvaluatedData:
    """Labelled data, and the score of the original network on them."""

    network: Network
    batches: Batches
    baseline: Score

    @classmethod
    def from_data(cls, network: Network, data: Data, metric: Metric | None) -> "EvaluatedData":
        """Evaluate the network.

        Raises:
            InterbasisError: The data have no labels.
        """
        metric = metric or default_metric(network)
        batches = Batches(data, predicts_next=network.predicts_next)
        parts = [
            sample_losses(metric, network(inputs.to(network.device)), labels)
            for _, inputs, labels in batches.labelled_chunks(chunk_size(network, batches))
        ]
        losses, counts = (torch.cat(column) for column in zip(*parts, strict=True))
        if not counts.sum():
            raise InterbasisError("no token of the data has a label, so there is no metric")
        return cls(network, batches, Score(metric, losses, counts))

    def chunks(self, progress: Progress) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (number of the first sample, inputs, labels)."""
        size = chunk_size(self.network, self.batches, fine=True)
        chunks = self.batches.labelled_chunks(size)
        for first, inputs, labels in self.batches.tracked(chunks, "ablation", progress):
            yield first, inputs.to(self.network.device), labels


@dataclass(frozen=True, eq=False)
class MaskedChunk:
    """A chunk of data with the attributions of one pair of dictionaries."""

    inputs: Tensor
    labels: Tensor
    target: LayerTokens
    blocks: list[AttributionBlock]


@dataclass(frozen=True, eq=False)
class MaskedPair:
    """A network whose active features at one dictionary are computed from some edges only."""

    data: EvaluatedData
    pair: PairOfDictionaries
    edges: SparseEdges
    statistics: FeatureStatistics
    """Those of the target's features."""
    limit: float
    """The metric that has to be met."""
    progress: Progress

    def search(self, seed: int, robust: bool, checkpoints: Checkpoints) -> PairRequired:
        """Find the edges required by Ê, in random order and, if wanted, against an opponent."""
        stored = len(self.edges.rms)
        strength = torch.arange(stored)
        shuffled = torch.randperm(stored, generator=torch.Generator().manual_seed(seed))
        by_rank, at_random = self._required({"strength": strength, "random": shuffled}, checkpoints)
        count = self._fewest(by_rank)
        robust_count = opposed = None
        if robust and count is not None:
            robust_count, opposed = self._against_opponent(strength, count, checkpoints)
        return PairRequired(
            source=self.pair.source.name, target=self.pair.target.name, stored=stored, count=count,
            epsilon=self.edges.rms[count - 1].item() if count else None, trials=by_rank,
            random_count=self._fewest(at_random), random_trials=at_random,
            robust_count=robust_count, opposed_value=opposed,
        )  # fmt: skip

    def _required(self, orders: dict[str, Tensor], checkpoints: Checkpoints) -> list[tuple[KeptEdges, ...]]:
        """Trials of every order: of a coarse grid, then of a finer one below the answer."""
        stored, trials = len(self.edges.rms), {name: dict[int, KeptEdges]() for name in orders}
        counts = {name: grid(0, stored) for name in orders}
        for round_ in ("coarse", "fine"):
            masks = [(orders[name] < kept) for name in orders for kept in counts[name]]
            if not masks:
                break
            _, values = checkpoints.remember(round_, partial(self._state, masks))
            results = iter(values["trials"])
            for name in orders:
                trials[name] |= {kept: KeptEdges(**next(results)) for kept in counts[name]}
                known = tuple(trials[name][kept] for kept in sorted(trials[name]))
                fewest = self._fewest(known)
                below = [trial.kept for trial in known if fewest is None or trial.kept < fewest]
                counts[name] = grid(max(below, default=0), fewest or stored)
        return [tuple(found[kept] for kept in sorted(found)) for found in trials.values()]

    def _state(self, masks: Sequence[Tensor]) -> State:
        return {}, {"trials": [trial.model_dump() for trial in self.evaluate(masks)]}

    def _fewest(self, trials: Sequence[KeptEdges]) -> int | None:
        """The fewest edges from which on every trial passes."""
        fewest = None
        for trial in reversed(trials):
            if not passes(self.data.baseline.metric, trial.value, self.limit):
                break
            fewest = trial.kept
        return fewest

    def _against_opponent(
        self, order: Tensor, count: int, checkpoints: Checkpoints
    ) -> tuple[int | None, float]:
        """The fewest edges, from ``count`` in steps of 2, that an opponent cannot break."""
        first, kept = math.nan, count
        while True:
            _, values = checkpoints.remember(f"opposed.{kept}", partial(self._opposed, order < kept))
            value = values["trials"][0]["value"]
            first = value if math.isnan(first) else first
            if passes(self.data.baseline.metric, value, self.limit):
                return kept, first
            if kept == len(order):
                return None, first
            kept = min(len(order), math.ceil(ROBUST_STEP * max(kept, 1)))

    def _opposed(self, mask: Tensor) -> State:
        return self._state([mask | (self.gradients(mask) > 0)])

    @torch.no_grad()
    def evaluate(self, masks: Sequence[Tensor]) -> list[KeptEdges]:
        """The metric with each of some masks [stored] of edges that are kept."""
        losses = torch.zeros(len(masks), dtype=torch.float64)
        errors, spread = torch.zeros_like(losses), torch.zeros((), dtype=torch.float64)
        kept = torch.stack(list(masks), dim=1)  # [stored, masks]
        dropped_means = [self._dropped_means(mask) for mask in masks]
        where_active = self.statistics.mean / self.statistics.frequency.clamp_min(1e-30)
        for chunk in self._chunks():
            active = chunk.target.active
            z, decided = double(active.values), chunk.target.counts[..., None] & active.real
            moved = self._dropped_attributions(chunk, kept)
            spread += ((z - where_active[active.indices]).square() * decided).sum()
            for m in range(len(masks)):
                change = (dropped_means[m][active.indices] - moved[..., m]) * decided
                errors[m] += change.square().sum()
                outputs = self._outputs(chunk, (z + change).to(active.values))
                losses[m] += sample_losses(self.data.baseline.metric, outputs, chunk.labels)[0].sum()
        count = self.data.baseline.counts.sum()
        return [
            KeptEdges(
                kept=int(mask.sum()), value=as_metric(self.data.baseline.metric, (loss / count).item()),
                error=(error / spread.clamp_min(1e-30)).item(),
            )
            for mask, loss, error in zip(masks, losses, errors, strict=True)
        ]  # fmt: skip

    def gradients(self, mask: Tensor) -> Tensor:  # [stored]
        """Change of the loss, to first order, when an edge outside a mask is restored; 0 within it."""
        gradient = torch.zeros(len(mask), dtype=torch.float64)
        row_sums = torch.zeros(self.pair.target.features, dtype=torch.float64)
        means = self._dropped_means(mask)
        for chunk in self._chunks():
            active = chunk.target.active
            decided = chunk.target.counts[..., None] & active.real
            with torch.no_grad():
                change = (
                    means[active.indices] - self._dropped_attributions(chunk, mask[:, None])[..., 0]
                ) * decided
            with torch.enable_grad():
                u = (double(active.values) + change).to(active.values).requires_grad_()
                outputs = self._outputs(chunk, u)
                losses = sample_losses("cross_entropy", outputs, chunk.labels)[0].sum()
                slope = double(torch.autograd.grad(losses, u)[0]) * decided
            row_sums.index_add_(0, active.indices.flatten(), slope.flatten())
            for block in chunk.blocks:
                here = slope[tuple(block.tokens.unbind(1))]  # [n, k_out]
                places = self._places(block)
                amounts = double(block.values[..., : places.shape[-1]]) * here[..., None]
                known = places < len(mask)
                gradient.index_add_(0, places[known], amounts[known])
        gradient -= self._means * row_sums[self.edges.target.long()]
        return torch.where(mask, 0.0, gradient)

    def _chunks(self) -> Iterator[MaskedChunk]:
        network, layers = self.data.network, (self.pair.source, self.pair.target)
        for first, inputs, labels in self.data.chunks(self.progress):
            with torch.no_grad():
                start = network.activations_at(layers[0].index, inputs)
                activations = activations_between(network, layers, start)
                tokens = [
                    LayerTokens.from_activations(network, layer, activations, self.pair.settings.counted)
                    for layer in layers
                ]
                blocks = list(self.pair.attributions(first, tokens[0], tokens[1], activations))
            yield MaskedChunk(inputs, labels, tokens[1], blocks)

    @cached_property
    def _means(self) -> Tensor:  # [stored]
        """Mean attribution of every edge over the tokens where its target is active."""
        frequency = self.statistics.frequency[self.edges.target.long()]
        return double(self.edges.mean) / double(frequency).clamp_min(1e-30)

    def _dropped_means(self, mask: Tensor) -> Tensor:  # [features_out]
        """Σ Ā over the edges into every feature that are dropped."""
        unstored = double(self.edges.unstored_mean) / double(self.statistics.frequency).clamp_min(1e-30)
        return unstored.index_add(0, self.edges.target.long(), torch.where(mask, 0.0, self._means))

    @cached_property
    def _codes(self) -> tuple[Tensor, Tensor]:
        """Edges as numbers, ascending, and the place of each among the stored edges."""
        codes = self.edges.target.long() * self.pair.source.features + self.edges.source.long()
        values, order = codes.sort()
        return values, order

    def _places(self, block: AttributionBlock) -> Tensor:  # [n, k_out, m]
        """Place of every attribution among the stored edges; their number where it is not stored."""
        codes, order = self._codes
        columns = block.columns if block.columns.ndim == 1 else block.columns[:, None]
        wanted = block.out.indices[..., None] * self.pair.source.features + columns
        found = torch.searchsorted(codes, wanted).clamp_max(len(codes) - 1)
        return torch.where(codes[found] == wanted, order[found], len(codes))

    def _dropped_attributions(self, chunk: MaskedChunk, kept: Tensor) -> Tensor:  # [n, T, k_out, masks]
        """Σ A over dropped edges of every active target feature; ``kept`` [stored, masks]."""
        total = torch.zeros(*chunk.target.active.indices.shape, kept.shape[1], dtype=torch.float64)
        dropped = torch.cat([~kept, torch.ones(1, kept.shape[1], dtype=torch.bool)])  # or not stored
        for block in chunk.blocks:
            places = self._places(block)
            values = double(block.values[..., : -len(REMAINDERS)]) * block.seen[:, None, : places.shape[-1]]
            for m in range(kept.shape[1]):
                sums = (values * dropped[places, m]).sum(-1)
                total[block.tokens[:, 0], block.tokens[:, 1], :, m] = sums
        return total

    def _outputs(self, chunk: MaskedChunk, u: Tensor) -> Tensor:
        """Outputs with other pre-activations u [n, T, k] of the target's active features."""
        network, layer, active = self.data.network, self.pair.target, chunk.target.active
        threshold = layer.dictionary.threshold
        least = u.new_zeros(()) if threshold is None else threshold[active.indices]
        change = (torch.where(u > least, u, 0.0) - active.values) * active.real
        f = chunk.target.f.clone()
        f[..., layer.source_columns] += (change[..., None] * layer.dictionary.decoder[active.indices]).sum(-2)
        for section in network.sections[layer.source_index :]:
            f = section(f)
        return network.finish(f, chunk.inputs)


def grid(least: int, most: int) -> list[int]:
    """At most `GRID` whole numbers above ``least`` up to ``most``, evenly spaced on a logarithmic scale."""
    if most <= least:
        return []
    low = math.log(max(least, 1))
    step = (math.log(most) - low) / GRID
    numbers = {math.ceil(math.exp(low + step * k) - 1e-9) for k in range(GRID)} | {most}
    return sorted(number for number in numbers if least < number <= most)
