"""Build the graph between dictionaries: survey of the tokens, then one pass over the data.

1. Place every dictionary in the network.
2. Survey the first tokens: which of them are massive and do not count.
3. Sum attributions between neighbouring dictionaries over all samples (`edge_sums.py`).
4. Keep the strongest edges (`graph.py`).
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, progress_bar
from interbasis.compute.checkpoints import environment, versions
from interbasis.compute.executor import BLOCKS, MAX_BYTES_OF_SUMS, Executor
from interbasis.compute.team import ALONE, Team, team_checkpoints
from interbasis.data.batches import Batches, Data
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
from interbasis.graph.settings import DEFAULT_NORM_LIMIT
from interbasis.lib.edges import require_fixed_order
from interbasis.lib.survey import survey
from interbasis.network.network import Network
from interbasis.numerics.integration import rule


def build_graph(
    network: Network,
    data: Data,
    dictionaries: Mapping[str, Dictionary | str | Path],
    *,
    edge_method: str = "gradient",
    edge_points: int = 16,
    edge_positions: int | None = None,
    skip_positions: int = 0,
    norm_limit: float | None = None,
    seed: int = 0,
    dtype: str | None = None,
    model: str = "",
    data_name: str = "",
    resume: str | Path | None = None,
    restart: bool = False,
    progress: Progress | bool | None = None,
    team: Team = ALONE,
) -> DictionaryGraph:
    """Measure the edges between the features of dictionaries, over data.

    Args:
        network: The network.
        data: Inputs, as `interbasis.build` takes them.
        dictionaries: Dictionaries or their files by place: a node layer (`ln1.3`, or TransformerLens' name),
            or the output of attention or an MLP (`attn_out.3`, `mlp_out.3`); a transcoder at the node layer
            that it reads. Layers without a dictionary are passed through.
        edge_method: "gradient", "exact", "quadrature" or "trapezoid", section by section.
        edge_points: Points of the integration rule, for the methods that use one.
        edge_positions: Output positions sampled per sample; default: all.
        skip_positions: Number of positions at the start of every sample that are left out of all sums.
        norm_limit: Leave out tokens whose norm exceeds this many times the median of their layer; 0 leaves
            none out. Default: 3 for language models, else 0.
        seed: Random seed.
        dtype: "float64" or "float32"; default: float32 for Hugging Face models, else float64.
        model: A name to remember the model by.
        data_name: A name to remember the data by.
        resume: The folder that the graph will be saved in; work that was interrupted resumes there.
        restart: Discard unfinished work that was begun with other settings instead of refusing it.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.
        team: The processes that share the work.

    Returns:
        The graph; ``graph.save(folder)`` stores it.

    Raises:
        InterbasisError: A dictionary does not fit its place, or a setting is out of range.
    """
    limit = DEFAULT_NORM_LIMIT if norm_limit is None and network.predicts_next else norm_limit or 0.0
    config = DictionaryBuildConfig.validated(
        edge_method=edge_method, edge_points=edge_points, edge_positions=edge_positions,
        skip_positions=skip_positions, norm_limit=limit, seed=seed, dtype=dtype or network.build_dtype,
    )  # fmt: skip
    fingerprint = network.fingerprint()
    network = network.to(getattr(torch, config.dtype))
    layers, references = _open(network, dictionaries)
    if len(layers) < 2:
        raise InterbasisError("edges need at least two dictionaries, received one")
    batches = Batches(data, "data")
    if config.edge_positions is not None:
        require_fixed_order(batches)
    executor = Executor(network, team, blocks=_blocks(layers))
    data_fingerprint = team.once("fingerprints", lambda: ({}, {"data": batches.fingerprint()}))[1]["data"]
    if resume is not None:
        decisive = config.model_dump() | {
            "model": fingerprint, "data": data_fingerprint,
            "dictionaries": [reference.model_dump() for reference in references], **environment(),
        }  # fmt: skip
        checkpoints = team_checkpoints(Path(resume), "dictionaries", decisive, team, restart=restart)
        executor = replace(executor, checkpoints=checkpoints)
    with progress_bar(progress) as advance:
        executor = replace(executor, progress=advance)
        with executor.clock("survey"):
            counted = survey(batches, config.skip_positions, config.norm_limit, executor).counted
        settings = DictionaryEdgeSettings(
            rule(config.edge_method, config.edge_points), config.edge_positions, config.seed, counted
        )
        with executor.clock("edges"):
            edges = DictionaryEdgesPass(network, layers, settings)
            sums = executor.run(edges, batches)
    statistics = [statistics_from_sums(_part(sums, f"{k}.")) for k in range(len(layers))]
    chosen = [SparseEdges.from_sums(_part(sums, f"edges.{k}.")) for k in range(len(layers) - 1)]
    header = DictionaryGraphHeader(
        layers=tuple(references),
        pairs=tuple(
            PairRecord(
                source=pair.source.name, target=pair.target.name,
                through_attention=pair.chain.mixes_positions, **numbers,
            )
            for pair, (_, numbers) in zip(edges.pairs, chosen, strict=True)
        ),
        config=config, model=model, data=data_name, model_fingerprint=fingerprint,
        data_fingerprint=data_fingerprint, samples=len(batches), seconds=executor.clock.seconds,
        versions=versions(),
    )  # fmt: skip
    return DictionaryGraph(header, statistics, [stored for stored, _ in chosen])


def _open(
    network: Network, dictionaries: Mapping[str, Dictionary | str | Path]
) -> tuple[list[DictionaryLayer], list[DictionaryReference]]:
    """Dictionaries at their places, in the network's order, and where they came from."""
    opened = {
        place: entry if isinstance(entry, Dictionary) else load(entry)
        for place, entry in dictionaries.items()
    }
    layers = place_dictionaries(network, opened)
    references = [
        DictionaryReference(
            place=layer.name, name=layer.dictionary.name,
            path="" if isinstance(dictionaries[layer.name], Dictionary) else str(dictionaries[layer.name]),
            digest=layer.dictionary.digest, features=layer.features, active=layer.dictionary.active,
        )
        for layer in layers
    ]  # fmt: skip
    return layers, references


def _part(sums: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): total for name, total in sums.items() if name.startswith(prefix)}


def _blocks(layers: list[DictionaryLayer]) -> int:
    """Most blocks that data are summed in; 0, one per process, where sums of two blocks do not fit."""
    size = sum(32 * b.features * (a.features + len(REMAINDERS)) for a, b in pairwise(layers))
    return BLOCKS if size <= MAX_BYTES_OF_SUMS else 0
