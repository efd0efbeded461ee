"""Build the graph between dictionaries: survey of the tokens, then a pass over the data.

1. Place every dictionary in the network.
2. Survey the first tokens: which of them are massive and do not count.
3. Build LIB's bases of the layers that are to have one (`lib_bases.py`).
4. Sum attributions between neighbouring dictionaries over all samples (`edge_sums.py`), in as many passes as
   memory requires (`memory.py`).
5. Keep the strongest edges (`strongest_edges.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.memory import resident_bytes
from interbasis.base.tensor_file import tensor_digest
from interbasis.compute.checkpoints import versions
from interbasis.compute.executor import Executor
from interbasis.data.batches import Batches
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.edge_sums import (
    EDGES,
    DictionaryEdgeSettings,
    DictionaryEdgesPass,
    EdgePart,
    PairOfDictionaries,
)
from interbasis.dictionaries.formats import load
from interbasis.dictionaries.graph import (
    DictionaryBuildConfig,
    DictionaryGraph,
    DictionaryGraphHeader,
    DictionaryReference,
    FeatureStatistics,
    PairRecord,
    SparseEdges,
    statistics_from_sums,
)
from interbasis.dictionaries.layers import DictionaryLayer, place_dictionaries
from interbasis.dictionaries.lib_bases import LIB, LibBasis
from interbasis.dictionaries.memory import edge_passes, most_blocks, pair_memory
from interbasis.dictionaries.strongest_edges import StrongestEdges
from interbasis.graph.interaction_graph import Provenance
from interbasis.lib.build import build, with_network_defaults
from interbasis.lib.build_data import BuildData
from interbasis.lib.edges import require_fixed_order
from interbasis.lib.memory import MemoryPlan
from interbasis.lib.rounds import Round, rounds
from interbasis.lib.survey import survey
from interbasis.network.network import Network
from interbasis.numerics.integration import rule


@dataclass(frozen=True, eq=False)
class GraphDictionaries:
    """Dictionaries that a graph is between, opened, and the node layers that have LIB's basis."""

    named: Mapping[str, Dictionary | str | Path]
    """Dictionaries or their files, as they were given, by place."""
    opened: Mapping[str, Dictionary]
    lib: tuple[str, ...]
    """Node layers with LIB's basis."""

    @classmethod
    def from_named(
        cls,
        network: Network,
        named: Mapping[str, Dictionary | str | Path],
        *,
        only_dictionaries: bool = True,
    ) -> "GraphDictionaries":
        """Open dictionaries and place them in a network.

        Args:
            network: The network.
            named: Dictionaries or their files by place: a node layer (`ln1.3`, or TransformerLens' name), or
                the output of attention or an MLP (`attn_out.3`, `mlp_out.3`); a transcoder at the node layer
                that it reads; "lib" for LIB's basis of a node layer.
            only_dictionaries: Pass through all other layers; else those between the first and the last
                dictionary have LIB's basis, too.

        Raises:
            InterbasisError: There are fewer than two, or one does not fit its place.
        """
        if len(named) < 2:
            raise InterbasisError(f"edges need at least two dictionaries, received {len(named)}")
        opened = {
            place: entry if isinstance(entry, Dictionary) else load(entry)
            for place, entry in named.items()
            if entry != LIB
        }
        placed = place_dictionaries(network, opened) if opened else []
        lib = [place for place in named if place not in opened]
        for place in lib:
            if place not in network.layers[:-1]:
                raise InterbasisError(
                    f"there is no node layer {place!r} for a basis of LIB; expected one of "
                    f"{', '.join(network.layers[:-1])}"
                )
        if not only_dictionaries:
            lib += _layers_between(network, placed, lib)
        return cls(named, opened, tuple(lib))

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the dictionaries by place; LIB where a place has its basis."""
        given = {place: d.digest or tensor_digest(d.tensors) for place, d in self.opened.items()}
        return given | dict.fromkeys(self.lib, LIB)

    def rounds(self, network: Network, config: DictionaryBuildConfig) -> list[Round]:
        """The rounds of a build in shards."""
        bases = rounds(network, with_network_defaults(network, config.lib_settings)) if self.lib else []
        return [*bases, (EDGES,)]


def _layers_between(network: Network, placed: Sequence[DictionaryLayer], lib: Sequence[str]) -> list[str]:
    """Node layers from the first dictionary to the last that neither they nor bases of LIB read."""
    numbers = [network.layers.index(place) for place in lib]
    taken = {*numbers, *(layer.index for layer in placed if not layer.reads_output)}
    first = min([*numbers, *(layer.source_index for layer in placed)])
    last = max([*numbers, *(layer.index for layer in placed)])
    return [network.layers[k] for k in range(first, last + 1) if k not in taken]


def build_graph(
    network: Network,
    batches: Batches,
    dictionaries: GraphDictionaries,
    config: DictionaryBuildConfig,
    executor: Executor,
    limit: int | None = None,
) -> DictionaryGraph:
    """Measure the edges between the features of dictionaries, over data.

    Args:
        network: The network as it was given; its fingerprint identifies the model.
        batches: Inputs.
        dictionaries: The dictionaries.
        config: Settings.
        executor: Runs passes over the data; its network is the given one in the build's dtype.
        limit: Bytes that the process may hold; default: any number.

    Returns:
        The graph; ``graph.save(folder)`` stores it.

    Raises:
        InterbasisError: A dictionary does not fit its place, or the limit on memory does not suffice.
    """
    if config.edge_positions is not None:
        require_fixed_order(batches)
    with executor.clock("survey"):
        surveyed = survey(batches, config.skip_positions, config.norm_limit, executor)
    bases = _fit_bases(dictionaries.lib, batches, config, executor, limit)
    layers = place_dictionaries(executor.network, {**dictionaries.opened, **bases})
    settings = DictionaryEdgeSettings(
        rule(config.edge_method, config.edge_points), config.edge_positions, config.seed, surveyed.counted
    )
    with executor.clock("edges"):
        statistics, edges = measure_edges(layers, settings, batches, executor, limit)
    header = DictionaryGraphHeader(
        layers=tuple(_reference(layer, dictionaries.named.get(layer.name, LIB)) for layer in layers),
        pairs=tuple(
            PairRecord(
                source=pair.source.name, target=pair.target.name,
                through_attention=pair.chain.mixes_positions, **numbers,
            )
            for pair, _, numbers in edges
        ),
        config=config,
        norm_limits=surveyed.counted.limits,
        provenance=Provenance(
            family=network.family, predicts_next=network.predicts_next, model="",
            model_fingerprint=network.fingerprint(), widths=tuple(node.width for node in network.nodes),
            data_fingerprints=BuildData(batches, batches, batches).fingerprints(executor),
            samples={"data": len(batches)}, versions=versions(), timings=executor.clock.seconds,
            processor_timings=executor.clock.processor_seconds, largest_directions=surveyed.directions,
        ),
    )  # fmt: skip
    return DictionaryGraph(header, statistics, [stored for _, stored, _ in edges], bases)


def measure_edges(
    layers: Sequence[DictionaryLayer],
    settings: DictionaryEdgeSettings,
    batches: Batches,
    executor: Executor,
    limit: int | None = None,
) -> tuple[list[FeatureStatistics], list[tuple[PairOfDictionaries, SparseEdges, dict[str, float | int]]]]:
    """Sum attributions between neighbouring dictionaries, in as many passes as memory requires.

    Returns:
        Statistics of every dictionary; of every pair its strongest edges, and what they leave out.
    """
    network = executor.network
    pairs = [PairOfDictionaries(network, a, b, settings) for a, b in pairwise(layers)]
    executor = replace(executor, blocks=most_blocks(pairs))
    passes = [[EdgePart(k, slice(0, pair.size[0])) for k, pair in enumerate(pairs)]]
    if limit is not None:
        passes = edge_passes(pair_memory(pairs, batches, executor), limit, resident_bytes())
    strongest = [StrongestEdges() for _ in pairs]
    for number, parts in enumerate(passes):
        sums = executor.run(
            DictionaryEdgesPass(network, layers, settings, parts, (number, len(passes))), batches
        )
        if number == 0:
            statistics = [statistics_from_sums(_part(sums, f"{k}.", "cpu")) for k in range(len(layers))]
        for part in parts:
            strongest[part.pair].add(_part(sums, f"edges.{part.pair}."))
        del sums
    return statistics, [(pair, *chosen.edges()) for pair, chosen in zip(pairs, strongest, strict=True)]


def _fit_bases(
    places: Sequence[str],
    batches: Batches,
    settings: DictionaryBuildConfig,
    executor: Executor,
    limit: int | None,
) -> dict[str, LibBasis]:
    """Build LIB's bases of node layers, by name."""
    if not places:
        return {}
    network, data = executor.network, BuildData(batches, batches, batches)
    config = with_network_defaults(network, settings.lib_settings)
    if limit is not None:
        positions = network.prefix(batches.first().to(network.device)).shape[1]
        plan = MemoryPlan.within(limit, network, positions * len(batches), config)
        executor = replace(executor, blocks=None, chunk_bytes=plan.chunk_bytes, windows=plan.windows)
    graph = build(network, data, config, executor)
    return {place: LibBasis.from_layer(graph.layers[network.layers.index(place)]) for place in places}


def _reference(layer: DictionaryLayer, entry: Dictionary | str | Path) -> DictionaryReference:
    dictionary = layer.dictionary
    return DictionaryReference(
        place=layer.name, name=dictionary.name, path="" if isinstance(entry, Dictionary) else str(entry),
        digest=dictionary.digest, features=layer.features, active=dictionary.active,
    )  # fmt: skip


def _part(sums: dict[str, Tensor], prefix: str, device: str | None = None) -> dict[str, Tensor]:
    named = {name.removeprefix(prefix): total for name, total in sums.items() if name.startswith(prefix)}
    return named if device is None else {name: total.to(device) for name, total in named.items()}
