"""Plan of a graph between dictionaries: time, memory and disk space, from a short trial.

1. The survey, and LIB's bases where some layers have them, are tried as for any build (`lib/plan.py`).
2. Edges are summed over a few chunks of the data: the first has what is computed once (products in advance,
   memory that is touched for the first time), the others say what a sample takes.
3. Sums over the data are extrapolated to all samples; the rest takes the same for any number of them.

In the trial a layer with LIB's basis has the identity instead, of all its directions: a basis of few samples
would lack some, and the time does not depend on the values.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from interbasis.base.memory import resident_bytes
from interbasis.compute.executor import Chunk, Executor, chunk_size
from interbasis.data.batches import Batches
from interbasis.dictionaries.build import GraphDictionaries
from interbasis.dictionaries.edge_sums import (
    DictionaryEdgeSettings,
    DictionaryEdgesPass,
    EdgePart,
    PairOfDictionaries,
)
from interbasis.dictionaries.graph import DictionaryBuildConfig, DictionaryPlan
from interbasis.dictionaries.layers import DictionaryLayer, place_dictionaries
from interbasis.dictionaries.lib_bases import LibBasis
from interbasis.dictionaries.memory import most_blocks, pair_memory, total_bytes
from interbasis.dictionaries.strongest_edges import StrongestEdges
from interbasis.graph.costs import Cost, PlanRequest
from interbasis.lib.build import with_network_defaults
from interbasis.lib.build_data import BuildData
from interbasis.lib.pilot import timed
from interbasis.lib.plan import make_plan
from interbasis.lib.survey import MAX_TOKENS, survey
from interbasis.network.network import Network
from interbasis.numerics.integration import rule

MAX_TRIAL_BYTES = 2**30
"""Sums of a pair that the trial holds at most; it sums some of the target features of larger ones."""
TIMED_CHUNKS = 3
"""Chunks after the first."""


def plan_graph(
    model: str,
    network: Network,
    batches: Batches,
    dictionaries: GraphDictionaries,
    config: DictionaryBuildConfig,
    request: PlanRequest | None = None,
) -> DictionaryPlan:
    """Try a build on a few samples, and say what it takes.

    Args:
        model: Name of the model.
        network: The network in the dtype and on the device of the build.
        batches: Data of the build.
        dictionaries: The dictionaries.
        config: Settings.
        request: Amount of data and machines; default: the data given, and this machine.
    """
    request = request or PlanRequest()
    positions = network.prefix(batches.first().to(network.device)).shape[1]
    samples = len(batches) if request.tokens is None else max(1, request.tokens // positions)
    with timed() as trial:
        edges = _Trial(network, batches, dictionaries, config, positions)
        bases, memory, disk = Cost(), 0, 0
        if dictionaries.lib:
            lib = make_plan(
                model, network, BuildData(batches, batches, batches),
                with_network_defaults(network, config.lib_settings), request,
            )  # fmt: skip
            queries = config.edge_positions or positions
            schemes = [
                scheme
                for scheme in lib.pilot.jacobians
                if int(scheme.settings.get("jacobian_queries") or positions) >= queries
            ]
            fewest = min(schemes, key=lambda scheme: scheme.seconds.processor)
            bases = lib.pilot.fixed + (lib.pilot.statistics.seconds + fewest.seconds) * samples
            memory, disk = lib.memory, lib.disk
    surveyed = min(MAX_TOKENS / positions, samples) / edges.samples
    return DictionaryPlan(
        model=model, samples=samples, positions=positions, processes=request.gpus * request.nodes,
        survey=edges.survey * max(1.0, surveyed), bases=bases, edges=edges.sample * samples,
        fixed=edges.fixed, forward=edges.forward * samples,
        memory=max(memory, resident_bytes() + total_bytes(edges.memory)),
        disk=disk + sum(pair.stored for pair in edges.memory),
        unfinished=edges.states * sum(pair.sums // pair.copies for pair in edges.memory),
        trial=trial(),
    )  # fmt: skip


class _Trial:
    """Costs of the survey and of edges on a few samples."""

    def __init__(
        self,
        network: Network,
        batches: Batches,
        dictionaries: GraphDictionaries,
        config: DictionaryBuildConfig,
        positions: int,
    ):
        executor = Executor(network)
        size = min(chunk_size(network, batches, fine=True), max(1, len(batches) // (1 + TIMED_CHUNKS)))
        self.samples = min(len(batches), size * (1 + TIMED_CHUNKS))
        drawn = Batches(batches.drawn(self.samples, config.seed).between(0, self.samples))
        with timed() as survey_cost:
            counted = survey(drawn, config.skip_positions, config.norm_limit, executor).counted
        self.survey = survey_cost()
        layers = place_dictionaries(
            network, {**dictionaries.opened, **_identities(network, dictionaries.lib)}
        )
        settings = DictionaryEdgeSettings(
            rule(config.edge_method, config.edge_points), config.edge_positions, config.seed, counted
        )
        pairs = [PairOfDictionaries(network, a, b, settings) for a, b in pairwise(layers)]
        executor = replace(executor, blocks=most_blocks(pairs))
        self.memory = pair_memory(pairs, batches, executor)
        self.states = executor.blocks or 1
        rows = [min(pair.rows, max(2, MAX_TRIAL_BYTES * pair.copies // pair.row)) for pair in self.memory]
        self._measure(network, drawn, layers, settings, rows, size)

    @torch.no_grad()
    def _measure(
        self,
        network: Network,
        drawn: Batches,
        layers: Sequence[DictionaryLayer],
        settings: DictionaryEdgeSettings,
        rows: Sequence[int],
        size: int,
    ) -> None:
        inputs = drawn.between(0, self.samples).to(network.device)
        with timed() as forward:
            network.activations(inputs[:size])
        self.forward = forward() * (1 / min(size, len(inputs)))
        parts = [EdgePart(k, slice(0, count)) for k, count in enumerate(rows)]
        edges = DictionaryEdgesPass(network, layers, settings, parts)
        state = edges.start()
        costs = []
        for first in range(0, max(2 * size, self.samples), size):
            chunk = inputs[first : first + size] if first < len(inputs) else inputs[:size]
            with timed() as taken:
                edges.update(state, Chunk(first, [chunk], drawn.name, network))
            costs.append(taken() * (1 / len(chunk)))
        self.sample = min(costs[1:], key=lambda cost: cost.processor)
        first_chunk = costs[0] * min(size, len(inputs))
        once = Cost(
            wall=max(0.0, first_chunk.wall - size * self.sample.wall),
            processor=max(0.0, first_chunk.processor - size * self.sample.processor),
        )
        with timed() as choosing:
            for part in parts:
                prefix = f"edges.{part.pair}."
                strongest = StrongestEdges()
                strongest.add({n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)})
                strongest.edges()
        whole = sum(pair.rows for pair in self.memory) / sum(rows)
        self.fixed = once + choosing() * whole


def _identities(network: Network, places: Sequence[str]) -> dict[str, LibBasis]:
    """Bases of all directions of node layers, by name."""
    nodes = {node.name: node for node in network.nodes}
    return {place: LibBasis.identity(nodes[place].width - nodes[place].first_coordinate) for place in places}
