"""Controls: what else would look as sparse?

The same curves for every basis, for networks of the same shape that learnt nothing, and for edges ranked at
random; and for the edges that the graph declares unneeded, what becomes of the model when only a part of them
goes.

Networks that learnt nothing, of the same shape: what sparsity looks like without a function.

The weights are changed in the model that a network was made from, and the model is converted again
(`Network.remake`). What belongs to the architecture stays what it is: activations, residual paths, norms.
`interbasis.models.matrices` says what counts as a weight matrix.

Does the graph only work when *all* unneeded edges are gone?

Edges whose ablation does no harm together may do harm in parts: two that cancel each other, say. So random
halves of them are ablated, and a short search looks for a bad half: it ranks groups of unneeded edges by the
damage that ablating each alone does, takes the worse half of the groups, and exchanges groups as long as it
gets worse.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from interbasis.analysis.ablation.curves import interaction_sparsity, sparsity_curves
from interbasis.analysis.ablation.evaluation import Evaluation, passes
from interbasis.analysis.ablation.records import Control, RequiredCount, Sparsity, Stress
from interbasis.analysis.ablation.search import EdgesWithMask, Search, ToleranceError
from interbasis.base.devices import double
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, silent
from interbasis.base.records import Basis, Metric
from interbasis.data.batches import Batches, Data
from interbasis.data.samples import IGNORED_LABEL, Samples
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.settings import BASIS_KINDS, BuildConfig
from interbasis.lib.build import build_alone
from interbasis.network.network import Change, Network


def shuffled(network: Network, seed: int = 0) -> Network:
    """Every weight matrix with its entries in random order; biases, norms and embeddings stay."""
    return _changed(network, seed, _permuted)


def reinitialised(network: Network, seed: int = 0) -> Network:
    """Every weight matrix drawn from a Gaussian with its own standard deviation."""
    return _changed(network, seed, _drawn)


def require_remake(network: Network) -> Callable[[Change], Network]:
    """Return the network's ``remake``, after checking that it reproduces the network from its own weights."""
    if network.remake is None:
        raise InterbasisError(
            "expected a network that can be made again with other weights, received one put together from "
            "sections, whose weights cannot be distinguished from their structure; give the Network "
            "remake=function, where function(change) returns it with change(W) in place of every weight "
            "matrix W, or leave scrambled networks out with scrambles=0"
        )
    if network.remake(torch.clone).fingerprint() != network.fingerprint():
        raise InterbasisError(
            "the model that this network was made from now gives another network: its weights, or the "
            "network's sections, were changed since; convert the model again"
        )
    return network.remake


def _changed(network: Network, seed: int, change: Callable[[Tensor, torch.Generator], Tensor]) -> Network:
    generator = torch.Generator().manual_seed(seed)
    return require_remake(network)(lambda matrix: change(matrix, generator))


def _permuted(matrix: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(matrix.numel(), generator=generator)
    return matrix.flatten()[order.to(matrix.device)].view_as(matrix)


def _drawn(matrix: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(matrix.shape, generator=generator, dtype=torch.float64)
    return (drawn * double(matrix).std().cpu()).to(matrix)


RANDOM_HALVES = 8
GROUPS = 12
"""Groups of unneeded edges that the search for a bad half takes or leaves."""
EXCHANGES = 6
"""Exchanges of two groups that it tries."""


def stress(
    evaluation: Evaluation,
    section: int,
    mask: Tensor,
    limit: float,
    seed: int = 0,
    progress: Progress = silent,
) -> Stress:
    """Ablate parts of what ``mask`` leaves out, for one section."""
    unneeded = (~mask).flatten().nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    total = RANDOM_HALVES + min(GROUPS, len(unneeded)) + EXCHANGES + 2
    values: list[float] = []

    def value(gone: Tensor, counts: bool = True) -> float:
        remaining = torch.ones(mask.numel(), dtype=torch.bool)
        remaining[gone.cpu()] = False
        metric = evaluation.edges({section: remaining.view_as(mask)}).value
        if counts:
            values.append(metric)
        progress(f"stress, section {section}", min(len(values) + 1, total), total)
        return metric

    all_ablated = value(unneeded, counts=False)
    if len(unneeded) < 2:
        return Stress(
            unneeded=len(unneeded),
            all_ablated=all_ablated,
            halves=(),
            worst_half=all_ablated,
            limit=limit,
            failed=0,
            tried=0,
        )
    for _ in range(RANDOM_HALVES):
        order = torch.randperm(len(unneeded), generator=generator)
        value(unneeded[order[: len(unneeded) // 2]])
    random_halves = tuple(values)
    _search(unneeded, value, generator, evaluation.metric == "accuracy")
    worst = min(values) if evaluation.metric == "accuracy" else max(values)
    failed = sum(not passes(evaluation.metric, v, limit) for v in values)
    return Stress(
        unneeded=len(unneeded),
        all_ablated=all_ablated,
        halves=random_halves,
        worst_half=worst,
        limit=limit,
        failed=failed,
        tried=len(values),
    )


def _search(
    unneeded: Tensor,
    value: Callable[[Tensor, bool], float],
    generator: torch.Generator,
    higher_is_better: bool,
) -> None:
    """Call ``value`` on ever worse halves."""
    groups: Sequence[Tensor] = unneeded[torch.randperm(len(unneeded), generator=generator)].chunk(GROUPS)
    sign = 1 if higher_is_better else -1
    alone = [sign * value(group, False) for group in groups]
    order = sorted(range(len(groups)), key=alone.__getitem__)
    chosen, remaining = order[: len(groups) // 2], order[len(groups) // 2 :]

    def badness(numbers: list[int]) -> float:
        return sign * value(torch.cat([groups[k] for k in numbers]), True)

    best = badness(chosen) if chosen else 0.0
    for _ in range(EXCHANGES if chosen else 0):
        out, into = (int(torch.randint(len(x), (1,), generator=generator)) for x in (chosen, remaining))
        changed, other = chosen.copy(), remaining.copy()
        changed[out], other[into] = remaining[into], chosen[out]
        metric = badness(changed)
        if metric < best:
            best, chosen, remaining = metric, changed, other


BASES: tuple[Basis, ...] = tuple(BASIS_KINDS)
Scramble = Literal["shuffled", "reinitialised"]
SCRAMBLES: dict[Scramble, Callable[..., Network]] = {"shuffled": shuffled, "reinitialised": reinitialised}


@dataclass(frozen=True)
class ControlSettings:
    """Settings of the controls and of their graphs."""

    bases: Sequence[Basis] = BASES
    stressed: Sequence[Basis] = ("lib", "pca")
    tolerance: float | None = None
    scrambles: int = 1
    build: BuildConfig = field(default_factory=BuildConfig)
    """Settings of all graphs, apart from the basis; its seed is that of everything random."""

    def __post_init__(self) -> None:
        if not self.bases:
            raise InterbasisError(f"expected at least one basis of {', '.join(BASES)}, received none")
        odd = [name for name in (*self.bases, *self.stressed) if name not in BASES]
        if odd:
            raise InterbasisError(f"expected bases of {', '.join(BASES)}, received {', '.join(odd)}")
        if self.scrambles < 0:
            raise InterbasisError(f"scrambles is a number of networks, at least 0, not {self.scrambles}")


@dataclass(frozen=True, eq=False)
class ControlPlan:
    """The controls that are to be made."""

    network: Network
    fit_data: Data
    data: Data
    metric: Metric | None
    settings: ControlSettings

    def __post_init__(self) -> None:
        if self.settings.scrambles:
            require_remake(self.network)  # before the minutes of work that come first

    @property
    def seed(self) -> int:
        return self.settings.build.seed

    def rows(self, progress: Progress) -> Iterator[tuple[str, Callable[[], Control]]]:
        """Yield (name, function that makes the row), so that rows that are known can be left out."""
        bases, scrambles = self.settings.bases, self.settings.scrambles
        for basis in bases:
            graph = _Once(partial(self._graph, self.network, basis, progress))
            yield basis, partial(self._trained, basis, graph, progress)
            if basis == bases[0]:
                yield f"{basis}, edges ranked at random", partial(self._random, basis, graph, progress)
        for kind, scramble in SCRAMBLES.items():
            for seed in range(self.seed, self.seed + scrambles):
                numbered = f", seed {seed}" if scrambles > 1 else ""
                title = f"{bases[0]}, {kind} weights{numbered}"
                yield title, partial(self._scrambled, title, kind, partial(scramble, seed=seed), progress)

    def _graph(self, network: Network, basis: Basis, progress: Progress) -> InteractionGraph:
        settings = self.settings.build.model_copy(update={"basis": basis})
        return build_alone(network, self.fit_data, settings, progress)

    def _trained(self, basis: Basis, once: "_Once", progress: Progress) -> Control:
        graph = once()
        curves = sparsity_curves(
            self.network, graph, self.data, self.metric, seed=self.seed, progress=progress
        )
        row = Control(
            name=basis, basis=basis, network="trained", ranking="Ê", curves=curves, sparsity=_sparsity(graph)
        )
        return self._stressed(row, graph, progress) if basis in self.settings.stressed else row

    def _random(self, basis: Basis, once: "_Once", progress: Progress) -> Control:
        graph = once()
        ranking = _random_ranking(graph, self.seed)
        curves = sparsity_curves(
            self.network, graph, self.data, self.metric, ranking=ranking, seed=self.seed, progress=progress
        )
        name = f"{basis}, edges ranked at random"
        return Control(name=name, basis=basis, network="trained", ranking="random", curves=curves)

    def _scrambled(
        self, title: str, kind: Scramble, scramble: Callable[[Network], Network], progress: Progress
    ) -> Control:
        other, basis = scramble(self.network), self.settings.bases[0]
        graph = self._graph(other, basis, progress)
        answers = with_predicted_labels(other.to(graph.config.torch_dtype), self.data)
        curves = sparsity_curves(other, graph, answers, self.metric, seed=self.seed, progress=progress)
        row = Control(
            name=title, basis=basis, network=kind, ranking="Ê", curves=curves, sparsity=_sparsity(graph)
        )
        if basis not in self.settings.stressed:
            return row
        search = Search.from_graph(other, graph, answers, self.metric, self.settings.tolerance)
        try:
            return row.model_copy(update={"required": _counts(search.all_edges(progress=progress))})
        except ToleranceError:  # directions that its basis dropped decide some of its answers
            return row

    def _stressed(self, row: Control, graph: InteractionGraph, progress: Progress) -> Control:
        search = Search.from_graph(self.network, graph, self.data, self.metric, self.settings.tolerance)
        required = search.all_edges(progress=progress)
        stressed = [
            stress(search.evaluation, k, edges.mask, search.limit, self.seed, progress)
            for k, edges in enumerate(required)
        ]
        stress_by_section = dict(zip(graph.section_names, stressed, strict=True))
        return row.model_copy(update={"required": _counts(required), "stress": stress_by_section})


def _counts(required: Sequence[EdgesWithMask]) -> dict[str, RequiredCount]:
    return {
        edges.source: RequiredCount(count=edges.count, stable_count=edges.stable_count) for edges in required
    }


class _Once:
    """A graph that two rows share: built when the first of them asks for it."""

    def __init__(self, make: Callable[[], InteractionGraph]):
        self._make = make
        self._graph: InteractionGraph | None = None

    def __call__(self) -> InteractionGraph:
        if self._graph is None:
            self._graph = self._make()
        return self._graph


def with_predicted_labels(network: Network, data: Data) -> Samples:
    """Return the inputs with the network's predictions as labels, which may well be the inputs themselves.

    Padding has no answer.
    """
    batches = Batches(data)
    inputs = torch.cat([chunk for _, chunk in batches.chunks(1024, padded=True)])
    with torch.no_grad():
        answers = [
            network(chunk.to(network.device)).argmax(-1).cpu()
            for _, chunk in batches.chunks(1024, padded=network.predicts_next)
        ]
    if batches.lengths is None or answers[0].ndim == 1:
        labels = torch.cat(answers)
    else:  # an answer for every position, none where a sample has ended
        positions = inputs.shape[1]
        pad = torch.nn.functional.pad
        labels = torch.cat([pad(chunk, (0, positions - chunk.shape[1])) for chunk in answers])
        labels[torch.arange(positions) >= batches.lengths[:, None]] = IGNORED_LABEL
    return Samples(
        len(inputs), lambda first, last: (inputs[first:last], labels[first:last]), lengths=batches.lengths
    )


def _random_ranking(graph: InteractionGraph, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(edges.shape, generator=generator) for edges in graph.edges]


def _sparsity(graph: InteractionGraph) -> dict[str, Sparsity]:
    return {section.source: section for section in interaction_sparsity(graph)}
