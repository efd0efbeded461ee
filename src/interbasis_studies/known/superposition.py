"""Networks that compute with more features than dimensions, and dictionaries that look for these.

A node layer holds f = T g, with K sparse true features g ≥ 0 and unit directions, the columns of T [d, K],
K > d. Features of the next layer are neurons that read few of them,

    g′ = ReLU( W R f − θ ),        R = Tᵀ Π,

W [K, K] with `READ_BY_FEATURE` ones per row, Π the projection away from the directions of features that
nothing reads. Other active features leak into R f; the threshold θ suppresses most of it. Since the neurons
themselves are the next layer's true features, directions and values are known exactly.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from pydantic import Field
from sklearn.metrics import average_precision_score
from torch import Tensor

from interbasis.base.records import Record
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.metrics import basis_gram, metric_matrix
from interbasis.dictionaries.settings import MetricKind, TrainSettings
from interbasis.dictionaries.training import fit as fit_dictionary
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.cores import Elementwise, Linear
from interbasis.network.network import Network, NodeLayer, Section
from interbasis.run.build import build
from interbasis_studies.known.planted import Draws, RowInputs
from interbasis_studies.known.records import RecoveryScores, ScoredBasis
from interbasis_studies.known.truth import NO_PART, KnownNetwork, Truth

if TYPE_CHECKING:
    from interbasis.dictionaries.graph import DictionaryGraph

READ_BY_FEATURE = 2
"""True features that a neuron reads."""
THRESHOLD = 0.6
"""θ: an active input is between 0.5 and 1.5."""
UNREAD_SCALE = 2.0
"""Size of features that nothing reads, relative to the others."""
DICTIONARY_SIZE = 1.5
"""Features of a dictionary per true feature."""

METRICS: dict[ScoredBasis, MetricKind] = {
    "dictionary": "raw", "dictionary_lib": "lib", "dictionary_root": "root", "dictionary_both": "both",
}  # fmt: skip


class SuperpositionSpec(Record):
    """Parameters of a planted network with superposition."""

    width: int = Field(64, ge=4)
    """Dimensions d of every node layer."""
    crowding: float = Field(2.0, ge=1)
    """True features per dimension."""
    active: float = Field(2.0, gt=0)
    """True input features that are active in a sample, on average."""
    unread: float = Field(0.0, ge=0, lt=1)
    """Share of the true features of every layer that nothing reads; at most a third of the dimensions."""
    depth: int = Field(2, ge=1)
    samples: int = Field(20_000, ge=2)
    steps: int = Field(1500, ge=1)
    """Steps of the training of a dictionary."""

    @property
    def features(self) -> int:
        """K."""
        return round(self.width * self.crowding)

    @property
    def unread_features(self) -> int:
        return min(round(self.unread * self.features), self.width // 3)


def plant_superposition(spec: SuperpositionSpec, seed: int = 0) -> KnownNetwork:
    """Make a network whose layers hold more sparse features than dimensions.

    Args:
        spec: The parameters.
        seed: Seed of directions, weights and inputs.

    Returns:
        The network, inputs for it, and the truth about both.
    """
    draws, count, unread = Draws(seed), spec.features, spec.unread_features
    read = torch.arange(count) < count - unread
    sizes = torch.where(read, 1.0, UNREAD_SCALE).double()
    columns = [draws.normal("directions", k, spec.width, count) for k in range(spec.depth + 1)]
    mixings = [T / T.norm(dim=0) for T in columns]
    weights = [_weights(draws, layer, count, read) for layer in range(spec.depth)]
    nodes = [NodeLayer(f"layer{k}", spec.width + 1) for k in range(spec.depth + 1)]
    nodes.append(NodeLayer("output", int(read.sum()) + 1))
    one = torch.ones(1, 1, dtype=torch.float64)
    sections = []
    for k, W in enumerate(weights):
        skip = torch.nn.functional.pad(one, (0, spec.width, 0, spec.width))
        bias = torch.full((count, 1), -THRESHOLD, dtype=torch.float64)
        A = torch.cat([bias, W @ _reading(mixings[k], read)], dim=1)
        B = torch.nn.functional.pad(mixings[k + 1] * sizes, (0, 0, 1, 0))
        sections.append(Section(nodes[k], nodes[k + 1], skip, A, B, Elementwise(torch.nn.ReLU())))
    last = torch.block_diag(one, _reading(mixings[-1], read)[read])
    sections.append(Section(nodes[-2], nodes[-1], last, last[:0], last[:, :0], Linear()))
    network = Network(RowInputs(), tuple(sections), family="superposition", rotate_last=False)
    generator, shape = draws("inputs"), (spec.samples, count)
    is_active = generator.random(shape) < spec.active / count
    values = [torch.from_numpy(is_active * generator.uniform(0.5, 1.5, shape)) * sizes]
    inputs = values[0] @ mixings[0].T
    for k, f in enumerate(network.activations(inputs)[: spec.depth]):
        values.append(network.sections[k].read_outs(f)[:, 0].relu() * sizes)
    outputs = network(inputs)
    parts = torch.where(read, torch.arange(count), NO_PART)
    same = torch.eye(int(read.sum()), dtype=torch.bool)
    truth = Truth(
        (*mixings, torch.eye(len(same), dtype=torch.float64)),
        (*values, outputs),
        (*[parts] * (spec.depth + 1), torch.arange(len(same))),
        (*[W[read][:, read] != 0 for W in weights], same),
        modular=False,
    )
    return KnownNetwork(network, inputs, truth)


def _reading(T: Tensor, read: Tensor) -> Tensor:  # [d, K], [K] -> R [K, d]
    """Directions projected away from those that nothing reads, so that these have no effect at all."""
    unread = torch.linalg.qr(T[:, ~read]).Q
    return T.T - (T.T @ unread) @ unread.T


def _weights(draws: Draws, layer: int, count: int, read: Tensor) -> Tensor:  # W [K, K]
    """Every neuron reads a few of the features that are read, and each of these is read as often."""
    generator, readable = draws("weights", layer), int(read.sum())
    W = torch.zeros(count, count, dtype=torch.float64)
    for _ in range(READ_BY_FEATURE):
        sources = [index for _ in range(-(-count // readable)) for index in generator.permutation(readable)]
        W[torch.arange(count), torch.tensor(sources[:count])] = 1.0
    return W


def train_dictionaries(
    known: KnownNetwork, spec: SuperpositionSpec, graph: InteractionGraph, metric: MetricKind, seed: int
) -> list[Dictionary]:
    """Dictionaries of all node layers that a neuron reads, with as many active features as there are true.

    Args:
        known: The planted network.
        spec: Its parameters.
        graph: LIB of it, for the metric.
        metric: Metric of the reconstruction error.
        seed: Seed of the training.

    Returns:
        A dictionary per layer.
    """
    dictionaries = []
    for k in range(spec.depth):
        x = known.network.activations_at(k, known.inputs)[:, 0, 1:]
        active = max(1, round((known.truth.values[k] > 0).double().sum(1).mean().item()))
        settings = TrainSettings(
            features=round(DICTIONARY_SIZE * spec.features), active=active, steps=spec.steps, batch=512,
            rate=4e-3, seed=seed,
        )  # fmt: skip
        gram = basis_gram(graph.layers[k], slice(1, None))
        dictionaries.append(fit_dictionary(x.float(), metric_matrix(metric, gram, torch.cov(x.T)), settings))
    return dictionaries


def score_dictionaries(known: KnownNetwork, dictionaries: list[Dictionary]) -> RecoveryScores:
    """Compare dictionaries of the first node layers with the true features that are read there."""
    values = [
        dictionary.encode(known.network.activations_at(k, known.inputs)[:, 0, 1:].float()).double()
        for k, dictionary in enumerate(dictionaries)
    ]
    directions = [dictionary.decoder.double() for dictionary in dictionaries]
    undefined = dict.fromkeys(RecoveryScores.model_fields, math.nan)
    edges = dictionary_edges(known, dictionaries) if len(dictionaries) > 1 else []
    return RecoveryScores(**undefined | found_features(known, directions, values, edges))


def dictionary_edges(known: KnownNetwork, dictionaries: list[Dictionary]) -> list[Tensor]:
    """Ê between the dictionaries of the first node layers, [features_out, features_in] each."""
    places = dict(zip(known.network.layers, dictionaries, strict=False))
    run = build(known.network, known.inputs, dictionaries=places, progress=False)
    graph = cast("DictionaryGraph", run.graph)
    matrices = []
    for edges, source, target in zip(graph.edges, dictionaries, dictionaries[1:], strict=False):
        matrix = torch.zeros(target.features, source.features)
        matrix[edges.target.long(), edges.source.long()] = edges.rms
        matrices.append(matrix)
    return matrices


def score_basis(known: KnownNetwork, graph: InteractionGraph, layers: int) -> dict[str, float]:
    """The same scores for the features of a basis, in the first so many node layers."""
    directions, values = [], []
    for k, layer in enumerate(graph.layers[:layers]):
        features = layer.to_features(known.network.activations_at(k, known.inputs)[:, 0])
        directions.append(layer.inverse[1:, layer.first_feature :].T)
        values.append(features[:, layer.first_feature :])
    edges = [graph.inner_edges(k) for k in range(min(layers - 1, len(graph.edges)))]
    return found_features(known, directions, values, edges)


def found_features(
    known: KnownNetwork, directions: list[Tensor], values: list[Tensor], edges: Sequence[Tensor] = ()
) -> dict[str, float]:
    """Mean best cosine and mean best correlation over the true features that are read, and their edges.

    The average precision of edges is over all pairs of true features: the strength of a pair is that of the
    edge between the features found whose values correlate best with theirs.

    Args:
        known: The planted network.
        directions: Of the features found, [features, d] per layer.
        values: Of the features found, [samples, features] per layer.
        edges: Ê between the features found, [features_out, features_in] for each pair of layers.
    """
    cosines, correlations, places = [], [], []
    for k, (rows, z) in enumerate(zip(directions, values, strict=True)):
        read = known.truth.parts[k] != NO_PART
        true, g = known.truth.mixings[k].T[read], known.truth.values[k][:, read]
        cosines.append((_unit(true) @ _unit(rows).T).abs().amax(1))
        best = (_unit((g - g.mean(0)).T) @ _unit((z - z.mean(0)).T).T).abs().max(1)
        correlations.append(best.values)
        places.append(best.indices)
    scores = {
        "cosine": torch.cat(cosines).mean().item(),
        "correlation": torch.cat(correlations).mean().item(),
    }
    if edges:
        pairs = [(places[k + 1][:, None], places[k][None]) for k in range(len(edges))]
        strengths = torch.cat([matrix[pair].flatten() for matrix, pair in zip(edges, pairs, strict=True)])
        exists = torch.cat([known.truth.acts_on[k].flatten() for k in range(len(edges))])
        scores["edge_precision"] = float(average_precision_score(exists.numpy(), strengths.numpy()))
    return scores


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
