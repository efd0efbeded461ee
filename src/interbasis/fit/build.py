"""From a network and data to an interaction graph."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from interbasis.data.batches import Batches, Data
from interbasis.fit.activation_cache import ActivationCache
from interbasis.fit.bases import BASES, FitSettings, JacobianSource
from interbasis.fit.edges import EdgeSettings, measure, require_fixed_order
from interbasis.fit.jacobian import Jacobians
from interbasis.fit.slices import jacobians_on_slices
from interbasis.fit.statistics import Wanted, collect
from interbasis.fit.survey import Survey, survey
from interbasis.graph.companions import companion
from interbasis.graph.interaction_graph import InteractionGraph, Provenance
from interbasis.graph.layer_basis import MAX_DENSE_IDENTITY, LayerBasis
from interbasis.graph.settings import DEFAULT_NORM_LIMIT, BuildConfig, BuildRequest
from interbasis.network.network import Network
from interbasis.runtime.checkpoints import NO_CHECKPOINTS, environment, versions
from interbasis.runtime.errors import InterbasisError, first_problem
from interbasis.runtime.literals import Basis
from interbasis.runtime.progress import Progress, progress_bar
from interbasis.runtime.team import ALONE, Team, team_checkpoints

BLOCKS = 16
"""Blocks that the data are summed in, so that as many processes give the same bits as one."""
MAX_BYTES_OF_SUMS = 2**28
"""What the sums of a network may weigh for that."""

P = ParamSpec("P")
R = TypeVar("R")


class Execution(BaseModel):
    """How a build is carried out, and what is remembered; nothing here changes a number of the graph."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )

    model: str = ""
    """A name to remember the model by."""
    request: BuildRequest | None = None
    """What was asked for by name, stored with the graph."""
    progress: Progress | bool | None = None
    """Show progress: True, False, a function to be told of it, or None, which is on a terminal only."""
    resume: Path | None = None
    """The folder the graph will be saved in. Work is stored there while it lasts: a build that was killed
    resumes when it is called again, and ends with the same graph bit for bit; other settings are refused."""
    restart: bool = False
    """Discard unfinished work that was begun with other settings instead of refusing it."""
    cache_gigabytes: float = Field(default=4.0, ge=0, allow_inf_nan=False)
    """Disk space for activations between the blocks of a language model, so that not every pass runs through
    all blocks; 0 computes them again."""
    team: Team = ALONE
    """The processes that share the work, each with a part of the samples; all of them call `build`, and all
    receive the graph. `interbasis build` under torchrun does so."""


def build(
    network: Network,
    data: Data,
    basis: Basis = "lib",
    jacobian_data: Data | None = None,
    edge_data: Data | None = None,
    **options: Any,
) -> InteractionGraph:
    """Find the basis of every node layer and the edges between neighbours.

    Args:
        network: The network; `interbasis.from_torch` and `interbasis.from_hf` make one.
        data: A tensor of inputs, a pair (inputs, labels), a list of batches of either, or a DataLoader;
            labels are ignored.
        basis: "lib", "gib", "jib", "pca", "neuron" or "random".
        jacobian_data: Data over which Jacobians are averaged; default: ``data``.
        edge_data: Data over which edges are averaged; default: ``data``.
        **options: Fields of `interbasis.BuildConfig` (what is computed) and of `interbasis.Execution` (how:
            ``progress``, ``resume``, ``restart``, ``cache_gigabytes``, ``model``).

    Returns:
        The graph; ``graph.save(folder)`` makes it a run.

    Raises:
        InterbasisError: A setting is unknown or out of range, or the data do not fit the network.
    """
    execution = _execution({name: options.pop(name) for name in Execution.model_fields if name in options})
    config = BuildConfig.of(basis=basis, **options)
    if not isinstance(network, Network):
        raise InterbasisError(
            f"expected an interbasis Network, received {type(network).__name__}; make one with "
            "interbasis.from_torch(module)"
        )
    if config.dtype is None:
        config = config.model_copy(update={"dtype": network.build_dtype})
    if config.norm_limit is None:
        limited = network.predicts_next and not config.isolate_largest
        limited = limited and not BASES[config.basis].needs_all_tokens
        config = config.model_copy(update={"norm_limit": DEFAULT_NORM_LIMIT if limited else 0.0})
    batches = _batches(config, data, jacobian_data, edge_data)
    graph = _Build(network, batches, config, execution).graph()
    kept = companion(graph)
    kept.network, kept.data = network, data
    return graph


def _execution(options: dict[str, Any]) -> Execution:
    try:
        return Execution(**options)
    except ValidationError as error:
        raise InterbasisError(f"cannot build: {first_problem(error)}") from error


def _batches(
    config: BuildConfig, data: Data, jacobian_data: Data | None, edge_data: Data | None
) -> dict[str, Batches]:
    batches = {"data": Batches(data, "data")}
    for name, other in (("jacobian_data", jacobian_data), ("edge_data", edge_data)):
        batches[name] = batches["data"] if other is None or other is data else Batches(other, name)
    if config.jacobian_sources is not None or config.jacobian_queries is not None:
        require_fixed_order(batches["jacobian_data"])
    if config.sources is not None:
        require_fixed_order(batches["edge_data"])
    return batches


class _Build:
    """One build: its inputs, its clock, and where its unfinished work is stored."""

    def __init__(
        self, network: Network, batches: dict[str, Batches], config: BuildConfig, execution: Execution
    ):
        self.network, self.whole, self.config, self.execution = network, batches, config, execution
        self.computing = network.to(config.torch_dtype)
        self.clock = _Clock()
        divided = {id(data): data.divided(execution.team, _blocks(network)) for data in batches.values()}
        self.batches = {name: divided[id(data)] for name, data in batches.items()}
        self.survey: Survey
        """Norms and largest directions of the first tokens, which decide the tokens that count."""
        self.checkpoints = NO_CHECKPOINTS
        if execution.resume is not None:
            self.checkpoints = team_checkpoints(
                execution.resume, "build", self._decisive(), execution.team, restart=execution.restart
            )

    def _decisive(self) -> dict[str, Any]:
        """Everything that decides a graph's bits: unfinished work is resumed only if it is the same."""
        for data in self.whole.values():
            if data.shuffled:
                raise InterbasisError(
                    f"{data.name}: a shuffling DataLoader sees another order with every pass, so a build "
                    "of it cannot be resumed; turn shuffling off"
                )
        return self.config.model_dump() | {
            "model": self.network.fingerprint(), **self._fingerprints, **environment(),
        }  # fmt: skip

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        """Of all data, which the first process alone reads as a whole."""
        team = self.execution.team
        own = {name: data.fingerprint() for name, data in self.whole.items()} if team.is_first else {}
        return team.from_first(({}, own))[1]

    def graph(self) -> InteractionGraph:
        """Bases, edges, and where they come from."""
        config, edges, errors = self.config, [], []
        with progress_bar(self.execution.progress) as advance:
            with self.clock("survey"):
                self.survey = survey(
                    self.computing,
                    self.batches["data"],
                    config.skip_positions,
                    config.norm_limit or 0.0,
                    advance,
                )
            layers = _agreed(self.execution.team, self._layers(advance))
            if config.edge_rule is not None:
                with self.clock("edges"):
                    measured = measure(
                        self.computing, layers, self.batches["edge_data"],
                        EdgeSettings(config.edge_rule, config.sources, self.survey.counted), advance,
                        self.checkpoints,
                    )  # fmt: skip
                edges = [section.edges.rms for section in measured]
                errors = [error for section in measured if (error := section.edges.error) is not None]
        return InteractionGraph(layers, edges, config, self._provenance(), errors)

    def _layers(self, advance: Progress) -> list[LayerBasis]:
        batches = self.batches["jacobian_data"]
        budget = 0 if batches.shuffled else int(self.execution.cache_gigabytes * 2**30)
        with ActivationCache(self.computing, len(batches), budget, self.checkpoints.folder) as cache:
            return self._fit(advance, cache)

    def _fit(self, advance: Progress, cache: ActivationCache) -> list[LayerBasis]:
        network, batches, config, basis = self.computing, self.batches, self.config, BASES[self.config.basis]
        rotate = network.rotate_last if config.rotate_last is None else config.rotate_last
        rotate = rotate and basis.kind.rotated
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
            statistics = collect(network, batches["data"], wanted, advance, self.checkpoints)
            about_jacobians = statistics
            if basis.needs_jacobians and not together:
                about_jacobians = collect(
                    network,
                    batches["jacobian_data"],
                    Wanted(grams=False, counted=counted),
                    advance,
                    self.checkpoints,
                )
        jacobians = Jacobians(
            network, about_jacobians, batches["jacobian_data"], config.jacobian_sources, config.seed, advance,
            config.jacobian_queries, self.checkpoints, cache, counted,
        )  # fmt: skip
        source = JacobianSource(
            self.clock.timing("Jacobians", jacobians.to_next),
            self.clock.timing("Jacobians", jacobians.to_end),
            self.clock.timing("Jacobians", partial(jacobians_on_slices, jacobians)),
        )
        nodes = network.nodes if config.isolate else [replace(node, isolated=0) for node in network.nodes]
        with self.clock("bases"):
            settings = FitSettings(
                config.variance_floor, config.jacobian_floor, rotate, config.seed, config.isolate_largest
            )
            return basis.fit(nodes, statistics.layers, source, settings)

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
            largest_directions=self.survey.directions,
            request=self.execution.request,
        )


def _blocks(network: Network) -> int:
    """Blocks that data are summed in: the same for every number of processes, unless two copies of the sums
    would take too much memory; then it is that number."""
    size = sum(
        8 * (node.width**2 + section.read.shape[0] ** 2)
        for node, section in zip(network.nodes, network.sections, strict=False)
    )
    return BLOCKS if size <= MAX_BYTES_OF_SUMS else 1


def _agreed(team: Team, layers: list[LayerBasis]) -> list[LayerBasis]:
    """The bases as the first process has them."""
    if team.size == 1:
        return layers
    tensors: dict[str, Tensor] = {}
    for k, layer in enumerate(layers):
        if not layer.identity:
            tensors |= {f"transform.{k}": layer.transform, f"inverse.{k}": layer.inverse}
    theirs, _ = team.from_first((tensors, {}))
    return [
        layer if layer.identity
        else replace(layer, transform=theirs[f"transform.{k}"], inverse=theirs[f"inverse.{k}"])
        for k, layer in enumerate(layers)
    ]  # fmt: skip


class _Clock:
    """Seconds per phase; time in a phase within a phase counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        inner_before, start = sum(self.seconds.values()), time.perf_counter()
        try:
            yield
        finally:
            inner = sum(self.seconds.values()) - inner_before
            passed = time.perf_counter() - start - inner
            self.seconds[phase] = self.seconds.get(phase, 0.0) + passed

    def timing(self, phase: str, function: Callable[P, R]) -> Callable[P, R]:
        """The same function, its time counted for a phase."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with self(phase):
                return function(*args, **kwargs)

        return timed
