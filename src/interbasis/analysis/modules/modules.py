"""Modules: groups of features that interact more among themselves than a random graph's would.

All layers together are one undirected graph. An edge weighs log(Ê / ε), ε being the smallest edge that its
section still needs, and what is at most 0 is no edge; the constant features are left out. Leiden maximises
the weighted modularity

    Q = (1/W) Σ_c [ w_c − γ s_c² / 4W ],

W the weight of all edges, w_c of those inside module c, s_c the summed strengths of its nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import graspologic_native
import numpy as np
from sklearn.metrics import adjusted_mutual_info_score

from interbasis.analysis.modules.weighted_graph import WeightedGraph
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph

NO_MODULE = -1
"""The module of a feature without edges."""

TRIALS = 10
"""Independent Leiden runs, of which the best is taken."""


@dataclass(frozen=True)
class NullModel:
    """Modularities found in graphs with the same degrees and weights, wired at random."""

    modularities: tuple[float, ...]
    mean: float
    deviation: float
    z: float
    """Standard deviations by which the graph's own modularity lies above their mean."""


@dataclass(frozen=True, eq=False)
class Modules:
    """A partition of all features."""

    assignment: tuple[np.ndarray, ...]
    """Per layer, the module of every feature [features]; −1 for those in none, the constant among them."""
    layers: tuple[str, ...]
    modularity: float
    resolution: float
    seed: int
    epsilons: tuple[float, ...]
    agreement_over_seeds: float | None = None
    """Mean adjusted mutual information between partitions found with different seeds."""
    agreement_over_resolutions: tuple[tuple[float, int, float], ...] = ()
    """(γ, number of modules, adjusted mutual information with this partition)."""
    null: NullModel | None = None
    leidenalg: tuple[float, float] | None = None
    """Modularity that leidenalg finds, and its partition's adjusted mutual information with this one."""

    @property
    def count(self) -> int:
        return 1 + max(int(layer.max(initial=NO_MODULE)) for layer in self.assignment)

    @property
    def sizes(self) -> list[int]:
        together = np.concatenate(self.assignment)
        return np.bincount(together[together != NO_MODULE], minlength=self.count).tolist()


def find_modules(
    graph: InteractionGraph,
    epsilons: Sequence[float] | None = None,
    resolution: float = 1.0,
    seed: int = 0,
    *,
    seeds: int = 10,
    resolutions: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
    null_graphs: int = 50,
    cross_check: bool = False,
) -> Modules:
    """Find Leiden's partition of all features, and test how far it can be trusted.

    Args:
        graph: A graph with edges.
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
    return partition(
        WeightedGraph.from_graph(graph, epsilons), graph.layer_names, resolution, seed, seeds=seeds,
        resolutions=resolutions, null_graphs=null_graphs, cross_check=cross_check,
    )  # fmt: skip


def partition(
    weighted: WeightedGraph,
    layers: Sequence[str],
    resolution: float = 1.0,
    seed: int = 0,
    *,
    seeds: int = 10,
    resolutions: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
    null_graphs: int = 50,
    cross_check: bool = False,
) -> Modules:
    """Partition a weighted graph as `find_modules` does, whose nodes are the features of named layers."""
    if not resolution > 0 or seeds < 0 or null_graphs < 0:
        raise InterbasisError(
            "expected a resolution above 0 and numbers of seeds and null graphs of at least 0, "
            f"received {resolution}, {seeds} and {null_graphs}"
        )
    labels = _number_by_size(leiden(weighted, resolution, seed))
    quality = modularity(weighted, labels, resolution)
    by_resolution = [(value, leiden(weighted, value, seed)) for value in resolutions]
    partitions = [leiden(weighted, resolution, seed + 1 + k) for k in range(seeds if seeds > 1 else 0)]
    pairs = [adjusted_mutual_info_score(a, b) for a, b in combinations(partitions, 2)]
    return Modules(
        assignment=tuple(by_layer(labels, weighted)),
        layers=tuple(layers),
        modularity=quality,
        resolution=resolution,
        seed=seed,
        epsilons=weighted.epsilons,
        agreement_over_seeds=float(np.mean(pairs)) if pairs else None,
        agreement_over_resolutions=tuple(
            (value, int(other.max()) + 1, float(adjusted_mutual_info_score(labels, other)))
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
) -> NullModel:
    generator = np.random.default_rng((seed, 1))
    values = []
    for _ in range(graphs):
        rewired = weighted.rewire(generator)
        values.append(modularity(rewired, leiden(rewired, resolution, seed), resolution))
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1)) if graphs > 1 else 0.0
    z = (quality - mean) / deviation if deviation > 1e-9 else 0.0  # else it is rounding
    return NullModel(tuple(values), mean, deviation, z)


def _leidenalg(
    weighted: WeightedGraph, labels: np.ndarray, resolution: float, seed: int
) -> tuple[float, float]:
    try:
        import igraph
        import leidenalg
    except ImportError as error:
        raise InterbasisError(
            "the cross-check requires leidenalg, which is not installed; pip install 'interbasis[leidenalg]'"
        ) from error
    network = igraph.Graph(n=len(weighted.connected), edges=weighted.ends.T.tolist())
    partition = leidenalg.find_partition(
        network, leidenalg.RBConfigurationVertexPartition, weights=weighted.weights.tolist(),
        resolution_parameter=resolution, seed=seed, n_iterations=-1,
    )  # fmt: skip
    other = np.array(partition.membership)
    return modularity(weighted, other, resolution), float(adjusted_mutual_info_score(labels, other))


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
