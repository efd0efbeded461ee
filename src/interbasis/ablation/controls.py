"""Controls: what else would look as sparse?

The same curves for every basis, for networks of the same shape that learnt nothing, and for edges ranked at
random; and for the edges that the graph declares unneeded, what becomes of the model when only a part of them
goes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import torch

from interbasis.ablation.curves import Curves, sparsity_curves
from interbasis.ablation.scrambling import reinitialised, require_remake, shuffled
from interbasis.ablation.search import EdgesRequired, Search
from interbasis.ablation.sparsity import Sparsity, interaction_sparsity
from interbasis.ablation.stress import Stress, stress
from interbasis.data.batches import Batches, Data
from interbasis.data.samples import IGNORED, Samples
from interbasis.fit.build import build
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Basis, Metric
from interbasis.runtime.progress import Progress, progress_bar

BASES: tuple[Basis, ...] = ("lib", "gib", "pca", "neuron", "random")
_GraphIn = Callable[[Basis], InteractionGraph]


@dataclass(frozen=True, eq=False)
class Control:
    """One row of the table."""

    name: str
    basis: Basis
    network: str
    """trained, shuffled or reinitialised."""
    ranking: str
    """Ê or random."""
    curves: Curves
    sparsity: tuple[Sparsity, ...] = ()
    required: tuple[EdgesRequired, ...] = ()
    stress: tuple[Stress, ...] = ()


def controls(
    network: Network,
    fit_data: Data,
    data: Data,
    metric: Metric | None = None,
    *,
    bases: Sequence[Basis] = BASES,
    stressed: Sequence[Basis] = ("lib", "pca"),
    tolerance: float | None = None,
    seed: int = 0,
    scrambles: int = 1,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> list[Control]:
    """All controls in one call.

    Graphs are built on ``fit_data`` with ``settings`` (those of `interbasis.build`) and evaluated on
    ``data``, (inputs, labels) or a language model's tokens alone, by the metric of `edges_required`. Networks
    that learnt nothing have their weights shuffled, or drawn anew, in the model that the network was made
    from (`Network.remake`), ``scrambles`` of either kind with seeds from ``seed`` on, and are measured by
    their own answers: the question is how few edges carry *their* function. They, and random rankings, are
    for the first of the ``bases``; ``stressed`` bases also get edges required and the stress test.
    """
    plan = Plan(network, fit_data, data, metric, bases, stressed, tolerance, seed, scrambles, settings)
    with progress_bar(progress) as advance:
        return [make() for _, make in plan.rows(advance)]


@dataclass(frozen=True, eq=False)
class Plan:
    """The controls that are to be made; the fields are the parameters of `controls`."""

    network: Network
    fit_data: Data
    data: Data
    metric: Metric | None
    bases: Sequence[Basis] = BASES
    stressed: Sequence[Basis] = ("lib", "pca")
    tolerance: float | None = None
    seed: int = 0
    scrambles: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.bases:
            raise InterbasisError(f"expected at least one basis of {', '.join(BASES)}, received none")
        odd = [name for name in (*self.bases, *self.stressed) if name not in BASES]
        if odd:
            raise InterbasisError(f"expected bases of {', '.join(BASES)}, received {', '.join(odd)}")
        if self.scrambles < 0:
            raise InterbasisError(f"scrambles is a number of networks, at least 0, not {self.scrambles}")
        if self.scrambles:
            require_remake(self.network)  # before the minutes of work that come first

    def rows(self, progress: Progress) -> Iterator[tuple[str, Callable[[], Control]]]:
        """(name, what makes the row), one after the other, so that rows that are known can be left out."""

        @lru_cache(maxsize=1)
        def graph_in(basis: Basis) -> InteractionGraph:
            return self._graph(self.network, basis, progress)

        for basis in self.bases:
            yield basis, partial(self._trained, basis, graph_in, progress)
            if basis == self.bases[0]:
                yield f"{basis}, edges ranked at random", partial(self._random, basis, graph_in, progress)
        for name, scramble in (("shuffled", shuffled), ("reinitialised", reinitialised)):
            for seed in range(self.seed, self.seed + self.scrambles):
                one_of = f", seed {seed}" if self.scrambles > 1 else ""
                title = f"{self.bases[0]}, {name} weights{one_of}"
                yield title, partial(self._scrambled, title, name, partial(scramble, seed=seed), progress)

    def _graph(self, network: Network, basis: Basis, progress: Progress) -> InteractionGraph:
        return build(network, self.fit_data, basis, progress=progress, seed=self.seed, **self.settings)

    def _trained(self, basis: Basis, graph_in: _GraphIn, progress: Progress) -> Control:
        graph = graph_in(basis)
        curves = sparsity_curves(
            self.network, graph, self.data, self.metric, seed=self.seed, progress=progress
        )
        row = Control(basis, basis, "trained", "Ê", curves, _sparsity(graph))
        return self._stressed(row, graph, progress) if basis in self.stressed else row

    def _random(self, basis: Basis, graph_in: _GraphIn, progress: Progress) -> Control:
        graph = graph_in(basis)
        ranks = _random_ranking(graph, self.seed)
        curves = sparsity_curves(
            self.network, graph, self.data, self.metric, ranking=ranks, seed=self.seed, progress=progress
        )
        return Control(f"{basis}, edges ranked at random", basis, "trained", "random", curves)

    def _scrambled(
        self, title: str, name: str, scramble: Callable[[Network], Network], progress: Progress
    ) -> Control:
        other, basis = scramble(self.network), self.bases[0]
        graph = self._graph(other, basis, progress)
        own = own_answers(other.to(graph.config.torch_dtype), self.data)
        curves = sparsity_curves(other, graph, own, self.metric, seed=self.seed, progress=progress)
        return Control(title, basis, name, "Ê", curves, _sparsity(graph))

    def _stressed(self, row: Control, graph: InteractionGraph, progress: Progress) -> Control:
        search = Search.of(self.network, graph, self.data, self.metric, self.tolerance)
        search.check_tolerance_is_reachable(range(len(graph.edges)))
        required = [search.edges(k, progress) for k in range(len(graph.edges))]
        found = [
            stress(search.evaluation, k, result.mask, search.limit, seed=self.seed, progress=progress)
            for k, result in enumerate(required)
        ]
        return replace(row, required=tuple(required), stress=tuple(found))


def own_answers(network: Network, data: Data) -> Samples:
    """The same inputs with the network's own answers as labels, which may well be the inputs themselves.

    Padding has no answer.
    """
    batches = Batches(data)
    with torch.no_grad():
        pairs = [
            (inputs, network(inputs.to(network.device)).argmax(-1).cpu())
            for _, inputs in batches.chunks(1024, padded=True)
        ]
    inputs, labels = map(torch.cat, zip(*pairs, strict=True))
    if batches.lengths is not None:
        labels[torch.arange(labels.shape[1]) >= batches.lengths[:, None]] = IGNORED
    return Samples(
        len(inputs), lambda first, last: (inputs[first:last], labels[first:last]), lengths=batches.lengths
    )


def _random_ranking(graph: InteractionGraph, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(edges.shape, generator=generator) for edges in graph.edges]


def _sparsity(graph: InteractionGraph) -> tuple[Sparsity, ...]:
    return tuple(interaction_sparsity(graph))
