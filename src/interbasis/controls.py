"""Controls: what else would look as sparse?

The same curves for every basis, for networks of the same shape that learnt nothing, and for edges ranked at
random; and for the edges that the graph declares unneeded, what becomes of the model when only a part of them
goes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from interbasis.choices import Basis, Metric
from interbasis.curves import Curves, sparsity_curves
from interbasis.data.batches import Batches, Data
from interbasis.graph import InteractionGraph
from interbasis.network import Network
from interbasis.pipeline import build
from interbasis.progress import Progress, progress_bar
from interbasis.required import EdgesRequired, Search
from interbasis.scrambling import reinitialised, shuffled
from interbasis.sparsity import Sparsity, interaction_sparsity
from interbasis.stress import Stress, stress

BASES: tuple[Basis, ...] = ("lib", "gib", "pca", "neuron", "random")


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
    metric: Metric = "accuracy",
    *,
    bases: Sequence[Basis] = BASES,
    stressed: Sequence[Basis] = ("lib", "pca"),
    tolerance: float | None = None,
    seed: int = 0,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> list[Control]:
    """All controls in one call.

    Graphs are built on ``fit_data`` with ``settings`` (those of `interbasis.build`) and evaluated on
    ``data``, (inputs, labels). A network that learnt nothing is measured against its own answers: the question is
    how few edges carry *its* function. ``stressed`` bases also get edges required and the stress test.
    """
    rows = []
    with progress_bar(progress) as tell:

        def curves(net: Network, graph: InteractionGraph, on: Data, **options: Any) -> Curves:
            return sparsity_curves(net, graph, on, metric, seed=seed, progress=tell, **options)

        for basis in bases:
            graph = build(network, fit_data, basis, progress=tell, seed=seed, **settings)
            row = Control(basis, basis, "trained", "Ê", curves(network, graph, data), _sparsity(graph))
            if basis in stressed:
                row = _stressed(row, network, graph, data, metric, tolerance, seed, tell)
            rows.append(row)
            if basis == bases[0]:
                ranks = _random_ranking(graph, seed)
                found = curves(network, graph, data, ranking=ranks)
                rows.append(Control(f"{basis}, edges ranked at random", basis, "trained", "random", found))
        for name, other in _scrambled(network, seed):
            graph = build(other, fit_data, bases[0], progress=tell, seed=seed, **settings)
            own = own_answers(other, data)
            title = f"{bases[0]}, {name} weights"
            rows.append(Control(title, bases[0], name, "Ê", curves(other, graph, own), _sparsity(graph)))
    return rows


def own_answers(network: Network, data: Data) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same inputs with the network's own answers as labels."""
    with torch.no_grad():
        return [
            (inputs, network(inputs.to(network.device)).argmax(-1).cpu())
            for _, inputs in Batches(data).chunks(1024)
        ]


def _stressed(
    row: Control,
    network: Network,
    graph: InteractionGraph,
    data: Data,
    metric: Metric,
    tolerance: float | None,
    seed: int,
    progress: Progress,
) -> Control:
    search = Search.of(network, graph, data, metric, tolerance)
    search.refuse_hopeless(range(len(graph.edges)))
    required = [search.edges(k, progress) for k in range(len(graph.edges))]
    found = [
        stress(search.evaluation, k, result.mask, search.limit, seed=seed, progress=progress)
        for k, result in enumerate(required)
    ]
    return replace(row, required=tuple(required), stress=tuple(found))


def _scrambled(network: Network, seed: int) -> Iterator[tuple[str, Network]]:
    yield "shuffled", shuffled(network, seed)
    yield "reinitialised", reinitialised(network, seed)


def _random_ranking(graph: InteractionGraph, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(edges.shape, generator=generator) for edges in graph.edges]


def _sparsity(graph: InteractionGraph) -> tuple[Sparsity, ...]:
    return tuple(interaction_sparsity(graph))
