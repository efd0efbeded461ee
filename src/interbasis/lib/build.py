"""From a network and data to an interaction graph."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from interbasis.base.devices import require_dtype, torch_device
from interbasis.base.errors import InterbasisError
from interbasis.base.memory import limited_workspace
from interbasis.base.progress import Progress, progress_bar
from interbasis.compute.checkpoints import NO_CHECKPOINTS, State, environment, versions
from interbasis.compute.clock import Clock
from interbasis.compute.locks import building
from interbasis.compute.shards import RoundFinishedError, Shards
from interbasis.compute.team import team_checkpoints
from interbasis.data.batches import Batches, Data
from interbasis.graph.interaction_graph import InteractionGraph, Provenance
from interbasis.graph.layer_basis import MAX_DENSE_IDENTITY, LayerBasis
from interbasis.graph.layer_state import layers_of, state_of
from interbasis.graph.settings import DEFAULT_NORM_LIMIT, BuildConfig
from interbasis.graph.stored_basis import StoredTensors
from interbasis.lib.activation_cache import ActivationCache
from interbasis.lib.bases import BASES, FitSettings, JacobianSource
from interbasis.lib.edges import EdgeSettings, measure, require_fixed_order
from interbasis.lib.empty_layers import check_features
from interbasis.lib.execution import Execution
from interbasis.lib.jacobian import Jacobians
from interbasis.lib.memory import MemoryPlan
from interbasis.lib.slices import jacobians_on_slices
from interbasis.lib.statistics import Wanted, chunk_size, counted_statistics, statistics_pass
from interbasis.lib.survey import Survey, survey
from interbasis.lib.windows import (
    Found,
    names_of,
    stored_layers,
    window_counted,
    window_data,
    window_network,
)
from interbasis.network.network import Network

BLOCKS = 16
"""Blocks that the data are summed in, so that as many processes give the same bits as one. Data of fewer
chunks have as many blocks as chunks: a smaller block takes as long as a chunk."""
MAX_BYTES_OF_SUMS = 2**28
"""What the sums of a network may weigh for that."""

NOT_SHARED = ("threads", "python")
"""What may differ between the jobs that compute shards of one build."""


@dataclass(frozen=True, eq=False)
class BuildData:
    """The data of a build; None is the first."""

    data: Data
    jacobian_data: Data | None = None
    edge_data: Data | None = None

    def batches(self, config: BuildConfig) -> dict[str, Batches]:
        """The three as batches; equal data are equal batches."""
        batches = {"data": Batches(self.data, "data")}
        for name, other in (("jacobian_data", self.jacobian_data), ("edge_data", self.edge_data)):
            shared = other is None or other is self.data
            batches[name] = batches["data"] if shared or other is None else Batches(other, name)
        if config.jacobian_sources is not None or config.jacobian_queries is not None:
            require_fixed_order(batches["jacobian_data"])
        if config.sources is not None:
            require_fixed_order(batches["edge_data"])
        return batches


def build(
    network: Network, data: BuildData, config: BuildConfig, execution: Execution | None = None
) -> InteractionGraph:
    """Find the basis of every node layer and the edges between neighbours.

    Args:
        network: The network.
        data: Inputs for bases, Jacobians and edges.
        config: What is computed.
        execution: How it is computed; default: in this process, without a folder.

    Returns:
        The graph.

    Raises:
        InterbasisError: The data do not fit the network.
    """
    execution = execution or Execution()
    config = with_defaults_of(network, config)
    BASES[config.basis].require(network, all_tokens=not (config.norm_limit or config.skip_positions))
    work = _Build(network, data.batches(config), config, execution)
    with work.resumed():
        try:
            graph = work.graph()
        except RoundFinishedError:
            work.checkpoints.finish()
            raise
        try:
            check_features(graph, warns=execution.team.is_first)
        except InterbasisError:
            work.checkpoints.finish(keeps_run=False)
            raise
    return graph


class _Build:
    """One build: its inputs, its clock, and where its unfinished work is stored."""

    def __init__(
        self, network: Network, batches: dict[str, Batches], config: BuildConfig, execution: Execution
    ):
        self.network, self.whole, self.config, self.execution = network, batches, config, execution
        self.computing = _computing(network, config, execution.resources.device)
        self.clock = Clock()
        team, merged = execution.team, execution.resources.memory is None and sums_are_small(network)
        divided = {
            id(data): data.divided(team, _blocks(self.computing, data, team.size) if merged else None)
            for data in batches.values()
        }
        self.batches = {name: divided[id(data)] for name, data in batches.items()}
        self.plan = self._plan()
        for data in self.batches.values():
            data.chunk_bytes = self.plan.chunk_bytes
        self.end: LayerBasis | None = None
        """The features of the last node layer, where a window after this one has found them."""
        self.first = 0
        """The number of the first node layer in the whole network."""
        self.survey: Survey
        """Norms and largest directions of the first tokens, which decide the tokens that count."""
        self.checkpoints = NO_CHECKPOINTS
        if isinstance(execution.team, Shards):
            request = "" if execution.request is None else execution.request.to_json()
            decisive = {name: value for name, value in self._decisive().items() if name not in NOT_SHARED}
            execution.team.begin(decisive, request)

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Hold the folder of unfinished work, and go on with what is in it."""
        folder, team, restart = self.execution.folder, self.execution.team, self.execution.restart
        with nullcontext() if folder is None else building(folder, team=team, group=team.group):
            if folder is not None:
                self.checkpoints = team_checkpoints(folder, "build", self._decisive(), team, restart=restart)
            yield

    def _plan(self) -> MemoryPlan:
        """How the build is cut to fit the memory."""
        limit, network = self.execution.resources.bytes, self.computing
        if limit is None:
            return MemoryPlan.whole(network)
        data = self.batches["data"]
        positions = network.prefix(data.first().to(network.device)).shape[1]
        plan = MemoryPlan.within(limit, network, positions * len(data), self.config)
        if len(plan.windows) > 1 and any(data.shuffled for data in self.whole.values()):
            raise InterbasisError(
                "sections that do not fit in memory together are built one after the other over the same "
                "samples, but a shuffling DataLoader gives other ones each time; turn shuffling off"
            )
        return plan

    def _decisive(self) -> dict[str, Any]:
        """Everything that decides a graph's bits: unfinished work is resumed only if it is the same."""
        for data in self.whole.values():
            if data.shuffled:
                raise InterbasisError(
                    f"{data.name}: a shuffling DataLoader changes its order with every pass, so a build "
                    "of it cannot be resumed; turn shuffling off"
                )
        plan = [list(map(list, self.plan.windows)), self.plan.chunk_bytes, self.plan.workspace]
        commits = {f"revision of {name}": data.revision for name, data in self.whole.items() if data.revision}
        return self.config.model_dump() | commits | {
            "memory": plan if self.execution.resources.memory is not None else None,
            "model": self.network.fingerprint(), **self._fingerprints, **environment(),
        }  # fmt: skip

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        """Of all data, which the first process alone reads as a whole."""
        team = self.execution.team
        return team.once(
            "fingerprints", lambda: ({}, {name: data.fingerprint() for name, data in self.whole.items()})
        )[1]

    def graph(self) -> InteractionGraph:
        """Bases, edges, and where they come from."""
        config = self.config
        with progress_bar(self.execution.progress) as advance, limited_workspace(self.plan.workspace):
            with self.clock("survey"):
                self.survey = survey(
                    self.computing,
                    self.batches["data"],
                    config.skip_positions,
                    config.norm_limit or 0.0,
                    advance,
                )
            if len(self.plan.windows) == 1:
                found = self._found(advance)
                return InteractionGraph(
                    found.layers, found.edges, self.config, self._provenance(), found.errors
                )
            return self._in_windows(advance)

    def _found(self, advance: Progress) -> Found:
        config, batches = self.config, self.batches
        with self._streams() as streams:
            layers = self._layers(advance, streams)
            if config.edge_rule is None:
                return Found(layers, [], [])
            same = batches["edge_data"] is batches["jacobian_data"]
            settings = EdgeSettings(
                config.edge_rule, config.sources, self.survey.counted, self.first, streams if same else None
            )
            with self.clock("edges"):
                measured = measure(
                    self.computing, layers, batches["edge_data"], settings, advance, self.checkpoints
                )
        edges = [section.edges for section in measured]
        return Found(layers, [one.rms for one in edges], [e for one in edges if (e := one.error) is not None])

    def _in_windows(self, advance: Progress) -> InteractionGraph:
        """The windows one after the other, from the last one; their results lie in the run's folder."""
        layers: list[LayerBasis] = []
        edges: list[tuple[Path, str] | Tensor] = []
        errors: list[tuple[Path, str] | Tensor] = []
        with ExitStack() as stack:
            caches = {id(data): stack.enter_context(self._cache(data)) for data in self.batches.values()}
            for number, (first, last) in reversed(list(enumerate(self.plan.windows))):
                name = f"window.{first}"
                told = partial(_told, advance, f"part {number + 1} of {len(self.plan.windows)}")
                make = partial(self._window_state, caches, (first, last), layers[:1], told)
                state = self.checkpoints.remember(name, make)
                file = self.checkpoints.path(name)
                self.checkpoints.within(f"sections.{first}").forget()
                layers[:0] = stored_layers(state, first, file)
                for many, kind in ((edges, "edges"), (errors, "edge_errors")):
                    keys = names_of(state, kind)
                    many[:0] = [state[0][key] if file is None else (file, key) for key in keys]
        return InteractionGraph(layers, _many(edges), self.config, self._provenance(), _many(errors))

    def _cache(self, data: Batches) -> ActivationCache:
        """What is kept of the way to the windows."""
        starts = tuple(first for first, _ in self.plan.windows[1:])
        budget = int(self.execution.resources.cache_gigabytes * 2**30)
        return ActivationCache(self.computing, len(data), budget, self.checkpoints.folder, starts)

    def _window_state(
        self, caches: dict[int, ActivationCache], window: tuple[int, int], after: list[LayerBasis],
        advance: Progress,
    ) -> State:  # fmt: skip
        """Bases and edges of one window; ``after`` is the first layer of the next one."""
        first, last = window
        part = copy(self)
        part.computing = window_network(self.computing, first, last)
        data = {
            id(one): window_data(self.computing, one, caches[id(one)], first) for one in self.batches.values()
        }
        part.batches = {name: data[id(one)] for name, one in self.batches.items()}
        part.checkpoints = self.checkpoints.within(f"sections.{first}")
        part.survey = replace(self.survey, counted=window_counted(self.survey.counted, first, last))
        part.end, part.first = after[0] if after else None, first
        return part._found(advance).state(first, with_last=not after)

    def _layers(self, advance: Progress, streams: ActivationCache) -> list[LayerBasis]:
        """The bases as the first process has them."""
        team = self.execution.team
        state = team.recalled("bases")
        if state is None:
            layers = self._fit(advance, streams)
            state = team.once("bases", lambda: state_of(layers))
        return layers_of(state)

    def _streams(self) -> ActivationCache:
        """What is kept of the way to every block for the passes that follow."""
        team, batches = self.execution.team, self.batches["jacobian_data"]
        one_pass = batches.shuffled or isinstance(team, Shards) or len(self.plan.windows) > 1
        budget = 0 if one_pass else int(self.execution.resources.cache_gigabytes * 2**30)
        return ActivationCache(self.computing, len(batches), budget, self.checkpoints.folder)

    def _fit(self, advance: Progress, cache: ActivationCache) -> list[LayerBasis]:
        network, batches, config, basis = self.computing, self.batches, self.config, BASES[self.config.basis]
        rotate = network.rotate_last if config.rotate_last is None else config.rotate_last
        rotate = rotate and basis.kind.rotated and self.end is None
        last = network.nodes[-1]
        if rotate and not network.rotate_last and last.width > MAX_DENSE_IDENTITY:
            raise InterbasisError(
                f"the last node layer {last.name!r} is {last.width} wide and never rotated; "
                "leave out rotate_last"
            )
        together = batches["jacobian_data"] is batches["data"]
        counted = self.survey.counted
        wanted = Wanted(
            basis.needs_grams, last_gram=rotate, cores=basis.needs_jacobians and together, counted=counted
        )
        with self.clock("statistics"):
            passes = [statistics_pass(network, batches["data"], wanted, advance, self.checkpoints)]
            if basis.needs_jacobians and not together:
                cores = Wanted(grams=False, counted=counted)
                passes.append(
                    statistics_pass(network, batches["jacobian_data"], cores, advance, self.checkpoints)
                )
            names = ("data", "jacobian_data")
            of_data, *of_others = [
                counted_statistics(network, batches[name], state)
                for name, state in zip(names, self.execution.team.sums(*passes), strict=False)
            ]
        jacobians = Jacobians(
            network, (of_others or [of_data])[0], batches["jacobian_data"], config.jacobian_sources,
            config.seed, advance, config.jacobian_queries, self.checkpoints, cache, counted, self.first,
        )  # fmt: skip
        source = JacobianSource(
            self.clock.timing("Jacobians", jacobians.to_next_freeing_sums),
            self.clock.timing("Jacobians", jacobians.to_end),
            self.clock.timing("Jacobians", partial(jacobians_on_slices, jacobians)),
        )
        nodes = network.nodes if config.isolate else [replace(node, isolated=0) for node in network.nodes]
        with self.clock("bases"):
            settings = FitSettings(
                config.variance_floor, config.jacobian_floor, rotate, config.seed, config.isolate_largest,
                self.end, self.first, self.execution.team,
            )  # fmt: skip
            return basis.fit(nodes, of_data.layers, source, settings)

    def _provenance(self) -> Provenance:
        with self.clock("fingerprints"):
            fingerprints = self._fingerprints
        return Provenance(
            family=self.network.family,
            predicts_next=self.network.predicts_next,
            model=self.execution.model,
            model_fingerprint=self.network.fingerprint(),
            widths=tuple(node.width for node in self.network.nodes),
            data_fingerprints=fingerprints,
            samples={name: len(data) for name, data in self.whole.items()},
            versions=versions(),
            timings=self.clock.seconds,
            processor_timings=self.clock.processor_seconds,
            largest_directions=self.survey.directions,
            request=self.execution.request,
        )


def _computing(network: Network, config: BuildConfig, device: str | None) -> Network:
    """The network in the dtype and on the device that it computes in."""
    where = network.device if device is None else torch_device(device)
    require_dtype(where, config.torch_dtype)
    if (where, config.torch_dtype) == (network.device, network.dtype):
        return network
    return network.to(where, config.torch_dtype)


def _told(advance: Progress, part: str, phase: str, done: int, total: int) -> None:
    advance(f"{phase}, {part}", done, total)


def _many(places: "list[tuple[Path, str] | Tensor]") -> Sequence[Tensor]:
    """Tensors in memory, or left in their files."""
    stored = [place for place in places if isinstance(place, tuple)]
    return StoredTensors(stored) if stored else [one for one in places if isinstance(one, Tensor)]


def with_defaults_of(network: Network, config: BuildConfig) -> BuildConfig:
    """The settings, with the defaults that depend on the network."""
    limited = network.predicts_next and not config.isolate_largest
    limited = limited and not BASES[config.basis].needs_all_tokens
    defaults = {"dtype": network.build_dtype, "norm_limit": DEFAULT_NORM_LIMIT if limited else 0.0}
    missing = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    return config.model_copy(update=missing)


def sums_are_small(network: Network) -> bool:
    """Whether the sums of two blocks fit in memory; else a process sums one block only."""
    size = sum(
        8 * (node.width**2 + section.shapes.read[0] ** 2)
        for node, section in zip(network.nodes, network.sections, strict=False)
    )
    return size <= MAX_BYTES_OF_SUMS


def _blocks(network: Network, data: Batches, processes: int) -> int | None:
    """Blocks that data are summed in, the same for up to 16 processes; None: one per process."""
    if data.read_from_its_beginning:
        return None
    return min(max(BLOCKS, processes), -(-len(data) // chunk_size(network, data, fine=True)))
