"""Measures that may tell a network that learnt from one that did not, and from the method's own habit.

Sparse and modular graphs come out of any network. What was learnt should also come out again: from other
halves of the data, and from networks of other seeds. Features of two graphs are matched one-to-one by the
absolute correlation of their values on the same inputs; modules are compared over matched features.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor

from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.robust import Attack, RobustSearch
from interbasis.analysis.ablation.search import Search
from interbasis.analysis.modules.modules import NO_MODULE, find_modules
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.base.records import Basis, Measured, Record
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis.run.build import build

CARRIED_SHARE = 0.99
"""Leading features that carry this share of a layer's variance are compared, the others are not."""


class Shared(Record):
    """Agreement of two graphs; 1 is complete."""

    features: Measured = Field(description="Mean absolute correlation of matched features, over layers.")
    modules: Measured = Field(description="Adjusted mutual information of the modules of matched features.")


class EdgeCounts(Record):
    """Edges required as shares of d_in · d_out, over all sections: the same for every network of a shape."""

    plain: Measured
    robust: Measured


def network_answers(network: Network, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs with the network's answers as labels, for networks without a task."""
    return inputs, network(inputs).argmax(-1)


def shared(
    networks: Sequence[Network],
    graphs: Sequence[InteractionGraph],
    inputs: Tensor,
    modules: Sequence[ModulesResult],
) -> Shared:
    """Compare two graphs, of one network or of two, on the same inputs.

    Args:
        networks: The networks of the two graphs.
        graphs: The two graphs, with the same node layers; the last layer is not compared.
        inputs: Inputs on which features are matched.
        modules: The modules of both.

    Returns:
        Agreement of features and of modules.
    """
    correlations, pairs = [], []
    for k in range(len(graphs[0].layers) - 1):
        (a, leading_a), (b, leading_b) = (
            _leading(network, graph, k, inputs) for network, graph in zip(networks, graphs, strict=True)
        )
        gain = (a.T @ b).abs().numpy()
        rows, columns = linear_sum_assignment(-gain)
        correlations.append(gain[rows, columns].mean())
        first = modules[0].assignment[k][leading_a[rows]].tolist()
        second = modules[1].assignment[k][leading_b[columns]].tolist()
        pairs += [pair for pair in zip(first, second, strict=True) if NO_MODULE not in pair]
    agreement = adjusted_mutual_info_score(*zip(*pairs, strict=True)) if pairs else 0.0
    return Shared(features=float(np.mean(correlations)), modules=float(agreement))


def _leading(
    network: Network, graph: InteractionGraph, layer: int, inputs: Tensor
) -> tuple[Tensor, np.ndarray]:
    """Values of the leading features, centred, at norm 1, [samples · positions, features], and which."""
    basis = graph.layers[layer]
    values = basis.to_features(network.activations_at(layer, inputs)).flatten(0, 1)[:, basis.first_feature :]
    values = values - values.mean(0)
    variances = values.square().sum(0)
    order = variances.sort(descending=True)
    count = int((order.values.cumsum(0) < CARRIED_SHARE * variances.sum()).sum()) + 1
    leading = order.indices[:count]
    norms = variances[leading].sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    return values[:, leading] / norms, basis.first_feature + leading.numpy()


def halves(network: Network, inputs: Tensor, test_inputs: Tensor, basis: Basis = "lib") -> Shared:
    """Agreement of the graphs of two halves of the data."""
    graphs = [build(network, inputs[start::2], basis=basis, progress=False).graph for start in (0, 1)]
    modules = [find_modules(graph, seeds=0, null_graphs=0, resolutions=()) for graph in graphs]
    return shared((network, network), graphs, test_inputs, modules)


def edge_counts(
    network: Network,
    graph: InteractionGraph,
    data: tuple[Tensor, Tensor],
    tolerance: float,
    attack: Attack | None = None,
) -> EdgeCounts:
    """Plain and robust edges required, summed over the sections."""
    search = Search(Evaluation(network, graph, data, "accuracy"), tolerance)
    plain, robust, pairs = 0, 0, 0
    for required in search.all_edges(stable=False, progress=False):
        k = graph.section_names.index(required.source)
        plain += required.count
        robust += RobustSearch(search.evaluation, k, search.limit, attack).count(required.count).count
        pairs += math.prod(graph.provenance.widths[k : k + 2])
    return EdgeCounts(plain=plain / pairs, robust=robust / pairs)
