"""Scores of the structure that a basis recovers: features, edges, modules, effects. 1 is all of it.

A recovered feature is read off true features by c = C T; its *share* in a part is what that part contributes
to its variance (`Truth.shares`), and the part with the largest share is the one the feature is counted for.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_mutual_info_score, average_precision_score, roc_auc_score
from torch import Tensor

from interbasis.analysis.ablation.masked_pass import ablate_nodes
from interbasis.analysis.modules.modules import NO_MODULE, by_layer, find_modules, leiden
from interbasis.analysis.modules.weighted_graph import WeightedGraph
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis_studies.known.records import RecoveryScores
from interbasis_studies.known.truth import KnownNetwork

Partition = Sequence[np.ndarray]
"""Per layer, the module of every feature."""
EFFECT_SAMPLES = 1000
"""Samples on which modules are ablated."""
MAX_LOG_RESOLUTION = 5.0
"""Bound of |log₂ γ| in the search for a number of modules."""
MAX_RESOLUTIONS = 12
"""Resolutions tried in the search for a number of modules."""


def score(known: KnownNetwork, graph: InteractionGraph, seed: int = 0) -> RecoveryScores:
    """Compare a graph with the truth.

    Args:
        known: The network with its truth.
        graph: A graph of it with edges, in any basis.
        seed: Seed of the partition into modules.

    Returns:
        All scores.
    """
    truth, inner = known.truth, range(len(graph.layers) - 1)
    shares = [truth.shares(k, layer.transform[layer.first_feature :]) for k, layer in enumerate(graph.layers)]
    labels = [share.argmax(1) for share in shares]  # `count` stands for no part
    read = [share[:, :-1].amax(1) > share[:, -1] for share in shares]
    best = torch.cat([shares[k].amax(1) for k in inner])
    clear = [{int(part) for part in labels[k][shares[k].amax(1) >= 0.9] if part < truth.count} for k in inner]
    precision, auroc, false = _edges(graph, labels, truth.acts_on)
    undefined = dict.fromkeys(("modules", "modules_counted", "module_count", "effects"), math.nan)
    return RecoveryScores(
        features=best.mean().item(),
        matched=float(np.mean([_matched(shares[k], truth.parts[k]) for k in inner])),
        subspaces=float(np.mean([_subspaces(known, graph, k, labels[k]) for k in inner])),
        coverage=float(np.mean([len(clear[k]) / len(truth.present(k)) for k in inner])),
        edge_precision=precision,
        edge_auroc=auroc,
        false_mass=false,
        **(_module_scores(known, graph, labels, read, seed) if truth.modular else undefined),
    )


def _module_scores(
    known: KnownNetwork, graph: InteractionGraph, labels: list[Tensor], read: list[Tensor], seed: int
) -> dict[str, float]:
    modules, counted = _modules(graph, seed, known.truth.count)
    return {
        "modules": _agreement(modules, labels, read),
        "modules_counted": _agreement(counted, labels, read),
        "module_count": (1 + max(int(layer.max(initial=-1)) for layer in modules)) / known.truth.count,
        "effects": _effects(known, graph, modules),
    }


def _matched(shares: Tensor, parts: Tensor) -> float:
    """Mean share over the best one-to-one matching of features with true features of the parts."""
    slots = parts[parts >= 0]
    gain = shares[:, slots].numpy()
    rows, columns = linear_sum_assignment(-gain)
    return float(gain[rows, columns].mean())


def _subspaces(known: KnownNetwork, graph: InteractionGraph, layer: int, labels: Tensor) -> float:
    """Squared canonical correlations between a part's true features and the features counted for it."""
    truth = known.truth
    S = truth.covariance(layer)
    D, U = torch.linalg.eigh(S)
    root = (U * D.clamp_min(0).sqrt()).T  # S = rootᵀ root; columns are true features
    c = graph.layers[layer].transform[1:, 1:] @ truth.mixings[layer]
    values = []
    for part in truth.present(layer):
        inside, counted = truth.parts[layer] == part, labels == part
        if not counted.any():
            values.append(0.0)
            continue
        a, b = _orthonormal(root[:, inside]), _orthonormal(root @ c[counted].T)
        cosines = torch.linalg.svdvals(a.T @ b)
        values.append(cosines.square().sum().item() / min(a.shape[1], b.shape[1]))
    return float(np.mean(values))


def _orthonormal(columns: Tensor) -> Tensor:
    u, s, _ = torch.linalg.svd(columns, full_matrices=False)
    return u[:, s > 1e-7 * s.max()]


def _edges(
    graph: InteractionGraph, labels: Sequence[Tensor], acts_on: Sequence[Tensor]
) -> tuple[float, float, float]:
    """Average precision, area under the ROC curve, and false share of Ê², over all sections."""
    strengths, true = [], []
    for k in range(len(graph.edges)):
        possible = torch.nn.functional.pad(acts_on[k], (0, 1, 0, 1))  # nothing acts on what is in no part
        strengths.append(graph.inner_edges(k).flatten())
        true.append(possible[labels[k + 1]][:, labels[k]].flatten())
    Ê, exists = torch.cat(strengths).numpy(), torch.cat(true).numpy()
    false = float((Ê[~exists] ** 2).sum() / max((Ê**2).sum(), 1e-300))
    if exists.all() or not exists.any():
        return float("nan"), float("nan"), false
    return float(average_precision_score(exists, Ê)), float(roc_auc_score(exists, Ê)), false


def _modules(graph: InteractionGraph, seed: int, count: int) -> tuple[Partition, Partition]:
    """Modules as `interbasis modules` finds them, and with the true number of modules."""
    try:
        modules = find_modules(graph, seed=seed, seeds=0, null_graphs=0, resolutions=())
    except InterbasisError:  # no edge is larger than another
        none = [np.full(layer.features, NO_MODULE) for layer in graph.layers]
        return none, none
    weighted = WeightedGraph.from_graph(graph)
    return modules.assignment, by_layer(leiden_with_count(weighted, count, seed), weighted)


def leiden_with_count(weighted: WeightedGraph, count: int, seed: int) -> np.ndarray:
    """The partition at the resolution that gives ``count`` modules, or nearly so; [nodes].

    log γ is bisected from γ = 1 on, which stays where it gives that number already.
    """
    low, high = -MAX_LOG_RESOLUTION, MAX_LOG_RESOLUTION
    nearest = np.zeros(len(weighted.connected), dtype=np.int64)
    for _ in range(MAX_RESOLUTIONS):
        middle = (low + high) / 2
        labels = leiden(weighted, 2**middle, seed)
        number = len(np.unique(labels))
        if abs(number - count) < abs(len(np.unique(nearest)) - count):
            nearest = labels
        if number == count:
            break
        low, high = (middle, high) if number < count else (low, middle)
    return nearest


def _agreement(modules: Partition, labels: list[Tensor], read: list[Tensor]) -> float:
    """Adjusted mutual information over the features that are in a module and belong to a part."""
    members, parts = [], []
    for layer, label, belongs in zip(modules, labels, read, strict=True):
        assigned = layer[-len(label) :]
        counted = (assigned != NO_MODULE) & belongs.numpy()
        members += assigned[counted].tolist()
        parts += label.numpy()[counted].tolist()
    return float(adjusted_mutual_info_score(parts, members)) if members else 0.0


def _effects(known: KnownNetwork, graph: InteractionGraph, modules: Sequence[np.ndarray]) -> float:
    """Contrast of the loss of a module's own part with other parts when it is ablated in all layers."""
    truth, inputs = known.truth, known.inputs[:EFFECT_SAMPLES]
    lost = damage(known.network, graph, modules, inputs, truth.parts[-1])  # [modules, parts]
    if not len(lost):
        return 0.0
    contrast = lost - (lost.sum(1, keepdims=True) - lost) / max(truth.count - 1, 1)
    rows, columns = linear_sum_assignment(-contrast)
    return float(contrast[rows, columns].sum() / truth.count)


def damage(
    network: Network, graph: InteractionGraph, modules: Sequence[np.ndarray], inputs: Tensor, parts: Tensor
) -> np.ndarray:  # [modules, parts]
    """Share of each part's output variance that is lost when a module is put at its mean, at most 1.

    ``parts`` are those of the outputs. A module is ablated in all layers before the output at once.
    """
    untouched, count = network(inputs), int(parts.max()) + 1
    spread = untouched.var(0, unbiased=False)
    rows = []
    for module in range(1 + max(int(layer.max(initial=-1)) for layer in modules)):
        keep: dict[int, int | Tensor] = {
            k: torch.from_numpy(modules[k] != module) for k in range(len(graph.layers) - 1)
        }
        error = (ablate_nodes(network, graph, inputs, keep) - untouched).square().mean(0)
        lost = [(error[parts == k].sum() / spread[parts == k].sum()).item() for k in range(count)]
        rows.append([min(1.0, share) for share in lost])
    return np.array(rows).reshape(-1, count)
