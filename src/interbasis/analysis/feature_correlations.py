"""Correlations of the features of two models on the same data."""

import torch
from torch import Tensor

from interbasis.analysis.nested_states import nested, within
from interbasis.compute.executor import Chunk, Executor, SumsPass, add_sums
from interbasis.data.batches import Batches, Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.cores import Sums
from interbasis.network.network import Network


def measured_correlations(
    networks: tuple[Network, Network], graphs: tuple[InteractionGraph, InteractionGraph], data: Data
) -> list[Tensor]:
    """Correlations of the features of two models on the same data, [features of a, features of b] by layer.

    Tokens count that counted in both builds. Layers that neither graph rotates are left empty.
    """
    pass_ = CorrelationPass(networks, graphs)
    sums = Executor(networks[0]).run(pass_, Batches(data, predicts_next=networks[0].predicts_next))
    correlations = [torch.zeros(0, 0)] * len(graphs[0].layers)
    for k in pass_.layers:
        layer = within(str(k), sums)
        n, a, b = layer["count"], layer["a"], layer["b"]
        cross = layer["ab"] - a[:, None] * b / n
        spreads = [(layer[name * 2] - layer[name].square() / n).clamp_min(0).sqrt() for name in "ab"]
        tiny = torch.finfo(torch.float64).tiny
        correlations[k] = cross / (spreads[0][:, None] * spreads[1]).clamp_min(tiny)
    return correlations


class CorrelationPass(SumsPass):
    """Sums of f̂_a, f̂_b, their squares and f̂_a f̂_bᵀ in every layer that is rotated, float64."""

    phase, name, file = "correlations", "correlations of features", "correlations"

    def __init__(self, networks: tuple[Network, Network], graphs: tuple[InteractionGraph, InteractionGraph]):
        self.networks, self.graphs = networks, graphs
        self.counted = [
            CountedTokens.from_layers(network, graph.layers)
            for network, graph in zip(networks, graphs, strict=True)
        ]
        pairs = enumerate(zip(graphs[0].layers, graphs[1].layers, strict=True))
        self.layers = {k for k, (a, b) in pairs if not (a.identity and b.identity)}

    @torch.no_grad()
    def update(self, state: Sums, chunk: Chunk) -> None:
        for k, fs in enumerate(zip(*(n.activations(chunk.inputs) for n in self.networks), strict=True)):
            if k not in self.layers:
                continue
            counts = [
                counted.at(k, network.nodes[k], f)
                for counted, network, f in zip(self.counted, self.networks, fs, strict=True)
            ]
            kept = counts[0] & counts[1]
            a, b = (
                graph.layers[k].to_features(f[kept].double())
                for graph, f in zip(self.graphs, fs, strict=True)
            )
            sums = {
                "count": kept.sum().double(), "a": a.sum(0), "b": b.sum(0), "aa": a.square().sum(0),
                "bb": b.square().sum(0), "ab": a.T @ b,
            }  # fmt: skip
            add_sums(state, nested({str(k): sums}))
