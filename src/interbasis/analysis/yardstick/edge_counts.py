"""The edges row: edges required, robust counts and curves of a basis, section by section.

Masks are tried on the labels of the data with the usual metric and tolerance or, where networks are compared
that learnt different things or nothing, on labels drawn from the network's own outputs: the expected rise of
the cross-entropy is then the Kullback–Leibler divergence from these outputs, and 0.1 nats of it mean the same
in every network.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from interbasis.analysis.ablation.curves import sparsity_curves
from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.robust import RobustSearch
from interbasis.analysis.ablation.search import Search
from interbasis.analysis.yardstick.records import IntervalEstimate, LabelKind, NeededEdges, NetworkKind
from interbasis.base.progress import Progress
from interbasis.base.records import Metric
from interbasis.compute.checkpoints import Checkpoints, State
from interbasis.compute.executor import chunk_size
from interbasis.data.batches import Batches
from interbasis.data.samples import IGNORED_LABEL
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network

Labelled = tuple[Tensor, Tensor]
"""Inputs and labels."""


@torch.no_grad()
def own_labels(network: Network, data: Batches, seed: int) -> Labelled:
    """Inputs with labels drawn from the network's outputs, where the data have labels."""
    generator, parts = torch.Generator().manual_seed(seed), []
    for _, inputs, labels in data.labelled_chunks(chunk_size(network, data), padded=network.predicts_next):
        probabilities = network(inputs.to(network.device)).double().softmax(-1).cpu()
        drawn = torch.multinomial(probabilities.flatten(0, -2), 1, generator=generator).view(labels.shape)
        parts.append((inputs, torch.where(labels == IGNORED_LABEL, labels, drawn)))
    inputs, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return inputs, labels


def given_labels(network: Network, data: Batches) -> Labelled:
    """Inputs and labels of the data."""
    chunks = data.labelled_chunks(chunk_size(network, data), padded=network.predicts_next)
    inputs, labels = (torch.cat(tensors) for tensors in list(zip(*chunks, strict=True))[1:])
    return inputs, labels


def edge_counts(
    network: Network,
    graph: InteractionGraph,
    data: Labelled,
    checkpoints: Checkpoints,
    progress: Progress,
    *,
    kind: NetworkKind,
    labels: LabelKind,
) -> Iterator[NeededEdges]:
    """Count the edges of every section that a network needs, in the basis of a graph."""
    metric: Metric | None = "cross_entropy" if labels == "own" else None
    search = Search(Evaluation(network, graph, data, metric), intervals=True)
    evaluation = search.evaluation
    curves = sparsity_curves(
        network, graph, data, evaluation.metric, checkpoints=checkpoints.within("curves"), progress=progress
    )
    search.check_tolerance_is_reachable(range(len(graph.edges)), checkpoints)
    for k, source in enumerate(graph.section_names):
        required = search.fewest_edges(k, progress, stable=False, checkpoints=checkpoints)
        assert required.interval is not None
        curve = curves.sections[source]

        def attack(k: int = k, plain: int = required.count) -> State:
            return {}, RobustSearch(evaluation, k, search.limit).count(plain, progress).model_dump()

        _, robust = checkpoints.remember(f"robust.{k}", attack, f"robust edges from {source}")
        low, high = curve.area_interval
        yield NeededEdges(
            network=kind,
            method=graph.config.basis,
            labels=labels,
            source=source,
            target=required.target,
            possible=required.possible,
            metric=evaluation.metric,
            tolerance=search.tolerance,
            baseline=evaluation.baseline.value,
            without_edges=curve.without_edges,
            robust=robust["count"],
            required=required.count,
            interval=required.interval,
            area=IntervalEstimate(value=curve.area, low=low, high=high),
        )
