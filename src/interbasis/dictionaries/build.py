"""Build the graph between dictionaries: survey of the tokens, then one pass over the data.

1. Place every dictionary in the network.
2. Survey the first tokens: which of them are massive and do not count.
3. Build LIB's bases of the layers that are to have one (`lib_bases.py`).
4. Sum attributions between neighbouring dictionaries over all samples (`edge_sums.py`).
5. Keep the strongest edges (`graph.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.compute.checkpoints import versions
from interbasis.compute.executor import BLOCKS, MAX_BYTES_OF_SUMS, Executor
from interbasis.data.batches import Batches
from interbasis.dictionaries.dictionary import Dictionary
from interbasis.dictionaries.edge_sums import DictionaryEdgeSettings, DictionaryEdgesPass
from interbasis.dictionaries.formats import load
from interbasis.dictionaries.graph import (
    DictionaryBuildConfig,
    DictionaryGraph,
    DictionaryGraphHeader,
    DictionaryReference,
    PairRecord,
    SparseEdges,
    statistics_from_sums,
)
from interbasis.dictionaries.layers import REMAINDERS, DictionaryLayer, place_dictionaries
from interbasis.dictionaries.lib_bases import LIB, LibBasis
from interbasis.graph.interaction_graph import Provenance
from interbasis.graph.settings import BuildConfig
from interbasis.lib.build import build, with_network_defaults
from interbasis.lib.build_data import BuildData
from interbasis.lib.edges import require_fixed_order
from interbasis.lib.survey import survey
from interbasis.network.network import Network
from interbasis.numerics.integration import rule


def build_graph(
    network: Network,
    batches: Batches,
    dictionaries: Mapping[str, Dictionary | str | Path],
    config: DictionaryBuildConfig,
    executor: Executor,
) -> DictionaryGraph:
    """Measure the edges between the features of dictionaries, over data.

    Args:
        network: The network as it was given; its fingerprint identifies the model.
        batches: Inputs.
        dictionaries: Dictionaries or their files by place: a node layer (`ln1.3`, or TransformerLens' name),
            or the output of attention or an MLP (`attn_out.3`, `mlp_out.3`); a transcoder at the node layer
            that it reads; "lib" for LIB's basis of a node layer. Other layers are passed through.
        config: Settings.
        executor: Runs passes over the data; its network is the given one in the build's dtype.

    Returns:
        The graph; ``graph.save(folder)`` stores it.

    Raises:
        InterbasisError: A dictionary does not fit its place.
    """
    if len(dictionaries) < 2:
        raise InterbasisError(f"edges need at least two dictionaries, received {len(dictionaries)}")
    if config.edge_positions is not None:
        require_fixed_order(batches)
    opened = {
        place: entry if isinstance(entry, Dictionary) else load(entry)
        for place, entry in dictionaries.items()
        if entry != LIB
    }
    if opened:
        place_dictionaries(executor.network, opened)  # what does not fit is refused before any work
    with executor.clock("survey"):
        surveyed = survey(batches, config.skip_positions, config.norm_limit, executor)
    bases = _fit_bases(
        [place for place in dictionaries if place not in opened], batches, config.lib_settings, executor
    )
    layers = place_dictionaries(executor.network, {**opened, **bases})
    executor = replace(executor, blocks=_blocks(layers))
    settings = DictionaryEdgeSettings(
        rule(config.edge_method, config.edge_points), config.edge_positions, config.seed, surveyed.counted
    )
    with executor.clock("edges"):
        edges = DictionaryEdgesPass(executor.network, layers, settings)
        sums = executor.run(edges, batches)
    statistics = [statistics_from_sums(_part(sums, f"{k}.")) for k in range(len(layers))]
    chosen = [SparseEdges.from_sums(_part(sums, f"edges.{k}.")) for k in range(len(layers) - 1)]
    header = DictionaryGraphHeader(
        layers=tuple(_reference(layer, dictionaries[layer.name]) for layer in layers),
        pairs=tuple(
            PairRecord(
                source=pair.source.name, target=pair.target.name,
                through_attention=pair.chain.mixes_positions, **numbers,
            )
            for pair, (_, numbers) in zip(edges.pairs, chosen, strict=True)
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
    return DictionaryGraph(header, statistics, [stored for stored, _ in chosen], bases)


def _fit_bases(
    places: Sequence[str], batches: Batches, config: BuildConfig, executor: Executor
) -> dict[str, LibBasis]:
    """Build LIB's bases of node layers, by name.

    Raises:
        InterbasisError: There is no such node layer with a section after it.
    """
    if not places:
        return {}
    network = executor.network
    for place in places:
        if place not in network.layers[:-1]:
            raise InterbasisError(
                f"there is no node layer {place!r} for a basis of LIB; expected one of "
                f"{', '.join(network.layers[:-1])}"
            )
    data = BuildData(batches, batches, batches)
    graph = build(network, data, with_network_defaults(network, config), executor)
    return {place: LibBasis.from_layer(graph.layers[network.layers.index(place)]) for place in places}


def _reference(layer: DictionaryLayer, entry: Dictionary | str | Path) -> DictionaryReference:
    dictionary = layer.dictionary
    return DictionaryReference(
        place=layer.name, name=dictionary.name, path="" if isinstance(entry, Dictionary) else str(entry),
        digest=dictionary.digest, features=layer.features, active=dictionary.active,
    )  # fmt: skip


def _part(sums: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): total for name, total in sums.items() if name.startswith(prefix)}


def _blocks(layers: list[DictionaryLayer]) -> int:
    """Most blocks that data are summed in; 0, one per process, where sums of two blocks do not fit."""
    size = sum(32 * b.features * (a.features + len(REMAINDERS)) for a, b in pairwise(layers))
    return BLOCKS if size <= MAX_BYTES_OF_SUMS else 0
