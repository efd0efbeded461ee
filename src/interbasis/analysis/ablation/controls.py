"""Controls: what else would look as sparse?

The same curves for every basis, for networks of the same shape that learnt nothing, and for edges ranked at
random; and for the edges that the graph declares unneeded, what becomes of the model when only a part of them
goes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from interbasis.analysis.ablation.curves import sparsity_curves
from interbasis.analysis.ablation.records import Control, RequiredCount, Sparsity
from interbasis.analysis.ablation.scrambling import reinitialised, require_remake, shuffled
from interbasis.analysis.ablation.search import EdgesRequired, Search, ToleranceError
from interbasis.analysis.ablation.sparsity import interaction_sparsity
from interbasis.analysis.ablation.stress import stress
from interbasis.base.errors import InterbasisError
from interbasis.base.literals import Basis, Metric
from interbasis.base.progress import Progress
from interbasis.data.batches import Batches, Data
from interbasis.data.samples import IGNORED_LABEL, Samples
from interbasis.graph.basis_kinds import BASIS_KINDS
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build import build_alone
from interbasis.network.network import Network

BASES: tuple[Basis, ...] = tuple(BASIS_KINDS)
Scramble = Literal["shuffled", "reinitialised"]
SCRAMBLES: dict[Scramble, Callable[..., Network]] = {"shuffled": shuffled, "reinitialised": reinitialised}


@dataclass(frozen=True)
class ControlSettings:
    """Which controls, and how their graphs are built."""

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
        """(name, what makes the row), one after the other, so that rows that are known can be left out."""
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
        own = own_answers(other.to(graph.config.torch_dtype), self.data)
        curves = sparsity_curves(other, graph, own, self.metric, seed=self.seed, progress=progress)
        row = Control(
            name=title, basis=basis, network=kind, ranking="Ê", curves=curves, sparsity=_sparsity(graph)
        )
        if basis not in self.settings.stressed:
            return row
        search = Search.of(other, graph, own, self.metric, self.settings.tolerance)
        try:
            return row.model_copy(update={"required": _counts(search.all_edges(progress=progress))})
        except ToleranceError:  # directions that its basis dropped decide some of its answers
            return row

    def _stressed(self, row: Control, graph: InteractionGraph, progress: Progress) -> Control:
        search = Search.of(self.network, graph, self.data, self.metric, self.settings.tolerance)
        required = search.all_edges(progress=progress)
        stressed = [
            stress(search.evaluation, k, edges.mask, search.limit, self.seed, progress)
            for k, edges in enumerate(required)
        ]
        stress_by_section = dict(zip(graph.section_names, stressed, strict=True))
        return row.model_copy(update={"required": _counts(required), "stress": stress_by_section})


def _counts(required: Sequence[EdgesRequired]) -> dict[str, RequiredCount]:
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


def own_answers(network: Network, data: Data) -> Samples:
    """The same inputs with the network's own answers as labels, which may well be the inputs themselves.

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
