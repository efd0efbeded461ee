"""Modules: groups of features that interact more among themselves than a random graph's would.

All layers together are one undirected graph. An edge weighs log(Ê / ε), ε being the smallest edge that its
section still needs, and what is at most 0 is no edge; the constant features are left out. Leiden maximises
the weighted modularity

    Q = (1/W) Σ_c [ w_c − γ s_c² / 4W ],

W the weight of all edges, w_c of those inside module c, s_c the summed strengths of its nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import TypedDict, Unpack

import graspologic_native
import numpy as np
from sklearn.metrics import adjusted_mutual_info_score

from interbasis.analysis.modules.null_model import rewired
from interbasis.analysis.modules.weighted_graph import WeightedGraph
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph

IN_NONE = -1
"""The module of a feature without edges."""

TRIALS = 10
"""Independent Leiden runs, of which the best is taken."""
MAX_LOG_RESOLUTION = 5.0
"""log₂ γ is sought within ± this, where the number of modules is told."""
COUNT_TRIALS = 12
"""Resolutions tried where the number of modules is told."""


@dataclass(frozen=True)
class NullModel:
    """Modularities found in graphs with the same degrees and weights, wired at random."""

    modularities: tuple[float, ...]
    mean: float
    deviation: float
    z: float
    """How many standard deviations the graph's own modularity lies above their mean."""


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
        return 1 + max(int(layer.max(initial=IN_NONE)) for layer in self.assignment)

    @property
    def sizes(self) -> list[int]:
        together = np.concatenate(self.assignment)
        return np.bincount(together[together != IN_NONE], minlength=self.count).tolist()


class Checks(TypedDict, total=False):
    """How far a partition is tested; options of `find_modules`."""

    seeds: int
    """Partitions with other seeds; default: 10, 0 for none."""
    resolutions: Sequence[float]
    """Other resolutions; default: 0.25, 0.5, 1, 2, 4."""
    null_graphs: int
    """Rewired graphs of the null model; default: 50, 0 for none."""
    cross_check: bool
    """Compare with leidenalg, which must be installed; default: False."""


def find_modules(
    graph: InteractionGraph,
    epsilons: Sequence[float] | None = None,
    resolution: float = 1.0,
    seed: int = 0,
    **checks: Unpack[Checks],
) -> Modules:
    """Leiden's partition, with how far it can be trusted.

    Args:
        graph: A graph with edges.
        epsilons: The smallest edges needed, one per section (`EdgesRequired.epsilon`); default: the smallest
            of the largest edges that carry 99 % of their section's Ê².
        resolution: γ; larger values give more and smaller modules.
        seed: Seed of the partition.
        **checks: ``seeds`` (partitions with other seeds to compare), ``resolutions`` (others to compare),
            ``null_graphs`` (rewired graphs, for the modularity where there are no modules), ``cross_check``
            (compare with leidenalg).

    Returns:
        The partition, its modularity, and the checks.

    Raises:
        InterbasisError: The graph has no edges above ε, or leidenalg is asked for and not installed.
    """
    seeds, null_graphs = checks.get("seeds", 10), checks.get("null_graphs", 50)
    weighted = WeightedGraph.of(graph, epsilons)
    _check(resolution, seeds, null_graphs)
    labels = _numbered(leiden(weighted, resolution, seed))
    modules = Modules(
        assignment=tuple(by_layer(labels, weighted)),
        layers=tuple(layer.name for layer in graph.layers),
        modularity=modularity(weighted, labels, resolution),
        resolution=resolution,
        seed=seed,
        epsilons=weighted.epsilons,
        agreement_over_resolutions=_over_resolutions(
            weighted, labels, checks.get("resolutions", (0.25, 0.5, 1.0, 2.0, 4.0)), seed
        ),
    )
    if seeds > 1:
        others = [leiden(weighted, resolution, seed + 1 + k) for k in range(seeds)]
        pairs = [adjusted_mutual_info_score(a, b) for a, b in combinations(others, 2)]
        modules = replace(modules, agreement_over_seeds=float(np.mean(pairs)))
    if null_graphs:
        modules = replace(modules, null=_null(weighted, modules, null_graphs))
    if checks.get("cross_check", False):
        modules = replace(modules, leidenalg=_leidenalg(weighted, labels, resolution, seed))
    return modules


def leiden(weighted: WeightedGraph, resolution: float, seed: int) -> np.ndarray:
    """The module of every node that has an edge, [nodes]; the same seed gives the same partition."""
    edges = [
        (str(a), str(b), float(w))
        for a, b, w in zip(weighted.sources, weighted.targets, weighted.weights, strict=True)
    ]
    _, partition = graspologic_native.leiden(
        edges, resolution=resolution, seed=seed, iterations=2, trials=TRIALS, use_modularity=True
    )
    return np.array([partition[str(node)] for node in weighted.connected], dtype=np.int64)


def leiden_into(weighted: WeightedGraph, count: int, seed: int) -> np.ndarray:
    """The partition of the resolution that gives ``count`` modules, or nearly so; [nodes].

    log γ is bisected from γ = 1 on, which is kept where it gives that number already.
    """
    low, high = -MAX_LOG_RESOLUTION, MAX_LOG_RESOLUTION
    nearest = np.zeros(len(weighted.connected), dtype=np.int64)
    for _ in range(COUNT_TRIALS):
        middle = (low + high) / 2
        labels = leiden(weighted, 2**middle, seed)
        found = len(np.unique(labels))
        if abs(found - count) < abs(len(np.unique(nearest)) - count):
            nearest = labels
        if found == count:
            break
        low, high = (middle, high) if found < count else (low, middle)
    return nearest


def modularity(weighted: WeightedGraph, labels: np.ndarray, resolution: float = 1.0) -> float:
    """Q of a partition of the connected nodes."""
    place = np.searchsorted(weighted.connected, (weighted.sources, weighted.targets))
    total = weighted.weights.sum()
    a, b = labels[place[0]], labels[place[1]]
    inside = weighted.weights[a == b].sum()
    size = int(labels.max()) + 1
    strengths = np.bincount(a, weighted.weights, size) + np.bincount(b, weighted.weights, size)
    return float(inside / total - resolution * (strengths**2).sum() / (4 * total**2))


def _over_resolutions(
    weighted: WeightedGraph, labels: np.ndarray, resolutions: Sequence[float], seed: int
) -> tuple[tuple[float, int, float], ...]:
    rows = []
    for value in resolutions:
        other = leiden(weighted, value, seed)
        rows.append((value, int(other.max()) + 1, float(adjusted_mutual_info_score(labels, other))))
    return tuple(rows)


def _null(weighted: WeightedGraph, modules: Modules, graphs: int) -> NullModel:
    generator = np.random.default_rng((modules.seed, 1))
    values = []
    for _ in range(graphs):
        other = rewired(weighted, generator)
        labels = leiden(other, modules.resolution, modules.seed)
        values.append(modularity(other, labels, modules.resolution))
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1)) if graphs > 1 else 0.0
    z = (modules.modularity - mean) / deviation if deviation > 1e-9 else 0.0  # else it is rounding
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
    place = np.searchsorted(weighted.connected, (weighted.sources, weighted.targets))
    other = igraph.Graph(n=len(weighted.connected), edges=list(zip(*place.tolist(), strict=True)))
    partition = leidenalg.find_partition(
        other, leidenalg.RBConfigurationVertexPartition, weights=weighted.weights.tolist(),
        resolution_parameter=resolution, seed=seed, n_iterations=-1,
    )  # fmt: skip
    theirs = np.array(partition.membership)
    return modularity(weighted, theirs, resolution), float(adjusted_mutual_info_score(labels, theirs))


def _numbered(partition: np.ndarray) -> np.ndarray:
    """Modules numbered by their size, the largest first."""
    _, first, inverse, counts = np.unique(
        partition, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((first, -counts))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[inverse]


def by_layer(labels: np.ndarray, weighted: WeightedGraph) -> list[np.ndarray]:
    """A partition of the connected nodes as modules of all features, layer by layer."""
    everything = np.full(weighted.offsets[-1], IN_NONE, dtype=np.int64)
    everything[weighted.connected] = labels
    return [everything[start:stop] for start, stop in pairwise(weighted.offsets)]


def _check(resolution: float, seeds: int, null_graphs: int) -> None:
    if not resolution > 0 or seeds < 0 or null_graphs < 0:
        raise InterbasisError(
            "expected a resolution above 0 and numbers of seeds and null graphs of at least 0, "
            f"received {resolution}, {seeds} and {null_graphs}"
        )
