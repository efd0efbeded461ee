"""Modules: groups of features that interact more among themselves than a random graph's would.

All layers together are one undirected graph. An edge weighs log(Ê / ε), ε being the smallest edge that its
section still needs, and what is at most 0 is no edge; the constant features are left out. Leiden maximises
the weighted modularity

    Q = (1/W) Σ_c [ w_c − γ s_c² / 4W ],

W the weight of all edges, w_c of those inside module c, s_c the summed strengths of its nodes.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise

import graspologic_native
import numpy as np

from interbasis.analysis.modules.weighted_graph import WeightedGraph
from interbasis.analysis.stages import modules as results
from interbasis.base.errors import InterbasisError
from interbasis.base.lazy import optional_import
from interbasis.graph.interaction_graph import InteractionGraph

NO_MODULE = -1
"""The module of a feature without edges."""

TRIALS = 10
"""Independent Leiden runs, of which the best is taken."""


def find_modules(
    graph: InteractionGraph | WeightedGraph,
    epsilons: Sequence[float] | None = None,
    resolution: float = 1.0,
    seed: int = 0,
    *,
    seeds: int = 10,
    resolutions: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
    null_graphs: int = 50,
    cross_check: bool = False,
) -> results.ModulesResult:
    """Find Leiden's partition of all features, and test how far it can be trusted.

    Args:
        graph: A graph with edges, or the weights of its edges.
        epsilons: The smallest edges needed, one per section (`EdgesRequired.epsilon`); default: the smallest
            of the largest edges that carry 99 % of their section's Ê².
        resolution: γ; larger values give more and smaller modules.
        seed: Seed of the partition.
        seeds: Number of partitions with other seeds to compare with each other; 0 for none.
        resolutions: Other resolutions to compare with.
        null_graphs: Number of rewired graphs, for the modularity where there are no modules; 0 for none.
        cross_check: Whether to compare with leidenalg, which must be installed.

    Returns:
        The partition, its modularity, and the checks.

    Raises:
        InterbasisError: The graph has no edges above ε, or leidenalg is asked for and not installed.
    """
    if not resolution > 0 or seeds < 0 or null_graphs < 0:
        raise InterbasisError(
            "expected a resolution above 0 and numbers of seeds and null graphs of at least 0, "
            f"received {resolution}, {seeds} and {null_graphs}"
        )
    weighted = graph if isinstance(graph, WeightedGraph) else WeightedGraph.from_graph(graph, epsilons)
    labels = _number_by_size(leiden(weighted, resolution, seed))
    quality = modularity(weighted, labels, resolution)
    by_resolution = [(value, leiden(weighted, value, seed)) for value in resolutions]
    partitions = [leiden(weighted, resolution, seed + 1 + k) for k in range(seeds if seeds > 1 else 0)]
    pairs = [mutual_information(a, b) for a, b in combinations(partitions, 2)]
    assignment = (tuple(members.tolist()) for members in by_layer(labels, weighted))
    return results.ModulesResult(
        resolution=resolution,
        seed=seed,
        modularity=quality,
        sizes=tuple(np.bincount(labels).tolist()),
        epsilons=dict(zip(weighted.layers[:-1], weighted.epsilons, strict=True)),
        epsilons_from_ablation=weighted.from_ablation,
        layers=dict(zip(weighted.layers, assignment, strict=True)),
        agreement_over_seeds=float(np.mean(pairs)) if pairs else None,
        agreement_over_resolutions=tuple(
            results.ResolutionAgreement(
                resolution=value,
                modules=int(other.max()) + 1,
                agreement=mutual_information(labels, other),
            )
            for value, other in by_resolution
        ),
        null=_null_model(weighted, quality, resolution, seed, null_graphs) if null_graphs else None,
        leidenalg=_leidenalg(weighted, labels, resolution, seed) if cross_check else None,
    )


def leiden(weighted: WeightedGraph, resolution: float, seed: int) -> np.ndarray:
    """The module of every node that has an edge, [nodes]; the same seed gives the same partition."""
    edges = zip(
        map(str, weighted.sources), map(str, weighted.targets), weighted.weights.tolist(), strict=True
    )
    _, partition = graspologic_native.leiden(
        list(edges), resolution=resolution, seed=seed, iterations=2, trials=TRIALS, use_modularity=True
    )
    return np.array([partition[str(node)] for node in weighted.connected], dtype=np.int64)


def modularity(weighted: WeightedGraph, labels: np.ndarray, resolution: float = 1.0) -> float:
    """Q of a partition of the connected nodes."""
    total = weighted.weights.sum()
    a, b = labels[weighted.ends]
    inside = weighted.weights[a == b].sum()
    size = int(labels.max()) + 1
    strengths = np.bincount(a, weighted.weights, size) + np.bincount(b, weighted.weights, size)
    return float(inside / total - resolution * (strengths**2).sum() / (4 * total**2))


def _null_model(
    weighted: WeightedGraph, quality: float, resolution: float, seed: int, graphs: int
) -> results.NullModularity:
    generator = np.random.default_rng((seed, 1))
    values = []
    for _ in range(graphs):
        rewired = weighted.rewire(generator)
        values.append(modularity(rewired, leiden(rewired, resolution, seed), resolution))
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1)) if graphs > 1 else 0.0
    z = (quality - mean) / deviation if deviation > 1e-9 else 0.0  # else it is rounding
    return results.NullModularity(mean=mean, deviation=deviation, z=z, graphs=graphs)


def _leidenalg(
    weighted: WeightedGraph, labels: np.ndarray, resolution: float, seed: int
) -> results.CrossCheck:
    need = "the cross-check requires leidenalg, which is not installed"
    igraph, leidenalg = (optional_import(name, need, "leidenalg") for name in ("igraph", "leidenalg"))
    network = igraph.Graph(n=len(weighted.connected), edges=weighted.ends.T.tolist())
    partition = leidenalg.find_partition(
        network, leidenalg.RBConfigurationVertexPartition, weights=weighted.weights.tolist(),
        resolution_parameter=resolution, seed=seed, n_iterations=-1,
    )  # fmt: skip
    other = np.array(partition.membership)
    agreement = mutual_information(labels, other)
    return results.CrossCheck(modularity=modularity(weighted, other, resolution), agreement=agreement)


def mutual_information(first: np.ndarray, second: np.ndarray) -> float:
    """Adjusted mutual information of two partitions."""
    from sklearn.metrics import adjusted_mutual_info_score

    return float(adjusted_mutual_info_score(first, second))


def _number_by_size(partition: np.ndarray) -> np.ndarray:
    """Number the modules by their size, the largest first."""
    _, first, inverse, counts = np.unique(
        partition, return_index=True, return_inverse=True, return_counts=True
    )
    return np.lexsort((first, -counts)).argsort()[inverse]


def by_layer(labels: np.ndarray, weighted: WeightedGraph) -> list[np.ndarray]:
    """A partition of the connected nodes as modules of all features, layer by layer."""
    everything = np.full(weighted.offsets[-1], NO_MODULE, dtype=np.int64)
    everything[weighted.connected] = labels
    return [everything[start:stop] for start, stop in pairwise(weighted.offsets)]
