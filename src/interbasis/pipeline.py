"""From a network and data to an interaction graph."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from interbasis.attribution import measure, refuse_shuffled
from interbasis.basis import DENSE, JacobianSource, LayerBasis, Settings, fit
from interbasis.config import BuildConfig
from interbasis.data.batches import Batches, Data
from interbasis.errors import InterbasisError
from interbasis.graph import InteractionGraph, Provenance
from interbasis.jacobian import Jacobians
from interbasis.network import Network
from interbasis.progress import Progress, progress_bar
from interbasis.resume import NOTHING, Resume, surroundings, versions
from interbasis.statistics import Wanted, collect
from interbasis.stored_streams import StoredStreams

P = ParamSpec("P")
R = TypeVar("R")


def build(
    network: Network,
    data: Data,
    basis: str = "lib",
    jacobian_data: Data | None = None,
    edge_data: Data | None = None,
    *,
    model: str = "",
    progress: Progress | bool | None = None,
    resume: str | Path | None = None,
    anew: bool = False,
    cache_gigabytes: float = 4.0,
    request: dict[str, Any] | None = None,
    **settings: Any,
) -> InteractionGraph:
    """Find the basis of every node layer and the edges between neighbours.

    ``data`` is a tensor of inputs, a pair (inputs, labels), a list of batches of either, or a DataLoader;
    labels are not looked at. The Jacobians are averaged over ``jacobian_data`` and the edges over
    ``edge_data``, which default to ``data``. ``settings`` are the fields of `interbasis.BuildConfig`.
    ``model`` is a name to remember the model by. Progress is shown on a terminal; True or False say so, or
    give a function to be told of it.

    With ``resume``, the folder the graph will be saved in, work is kept there while it lasts: a build that
    was killed goes on when it is called again, and ends with the same graph bit for bit. Other settings are
    refused, or with ``anew`` begin from nothing. ``request`` is remembered with the graph.

    Activations between the blocks of a language model are kept on disk while it is built, so that not every
    pass runs through all blocks: ``cache_gigabytes`` is what they may take, and 0 computes them again.
    """
    config = BuildConfig.of(basis=basis, **settings)
    if not isinstance(network, Network):
        raise InterbasisError(
            f"expected an interbasis Network, received {type(network).__name__}; make one with "
            "interbasis.from_torch(module)"
        )
    if config.dtype is None:
        config = config.model_copy(update={"dtype": network.build_dtype})
    batches = {"data": Batches(data, "data")}
    for name, other in (("jacobian_data", jacobian_data), ("edge_data", edge_data)):
        batches[name] = batches["data"] if other is None or other is data else Batches(other, name)
    if config.jacobian_sources is not None or config.jacobian_queries is not None:
        refuse_shuffled(batches["jacobian_data"])
    if config.sources is not None:
        refuse_shuffled(batches["edge_data"])
    computing = network.to(config.torch_dtype)
    clock = _Clock()
    kept = (
        NOTHING if resume is None else Resume(resume, "build", _decisive(network, batches, config), anew=anew)
    )
    edges, errors = [], []
    streams = _streams(computing, batches["jacobian_data"], cache_gigabytes, kept.folder)
    with streams, progress_bar(progress) as tell:
        layers = _fit(computing, batches, config, clock, tell, kept, streams)
        if config.edge_rule is not None:
            with clock("edges"):
                found = measure(
                    computing, layers, batches["edge_data"], config.edge_rule, config.sources, tell, kept
                )
            edges = [section.edges.rms for section in found]
            errors = [error for section in found if (error := section.edges.error) is not None]
    with clock("fingerprints"):
        fingerprints = {name: data.fingerprint() for name, data in batches.items()}
    provenance = Provenance(
        family=network.family,
        model=str(model),
        model_fingerprint=network.fingerprint(),
        widths=tuple(node.width for node in network.nodes),
        data_fingerprints=fingerprints,
        samples={name: len(data) for name, data in batches.items()},
        versions=versions(),
        timings=clock.seconds,
        request=request or {},
    )
    return InteractionGraph(layers, edges, config, provenance, errors)


def _fit(
    network: Network,
    batches: dict[str, Batches],
    config: BuildConfig,
    clock: "_Clock",
    progress: Progress,
    kept: Resume,
    streams: StoredStreams,
) -> list[LayerBasis]:
    rotate = network.rotate_last if config.rotate_last is None else config.rotate_last
    rotate = rotate and config.basis != "neuron"
    last = network.nodes[-1]
    if rotate and not network.rotate_last and last.width > DENSE:
        raise InterbasisError(
            f"the last node layer {last.name!r} is {last.width} wide and never rotated; leave out rotate_last"
        )
    needs_jacobian = config.basis in ("lib", "gib", "random")
    together = batches["jacobian_data"] is batches["data"]
    wanted = Wanted(config.basis != "neuron", last_gram=rotate, cores=needs_jacobian and together)
    with clock("statistics"):
        statistics = collect(network, batches["data"], wanted, progress, kept)
        about_jacobians = statistics
        if needs_jacobian and not together:
            about_jacobians = collect(network, batches["jacobian_data"], Wanted(grams=False), progress, kept)
    jacobians = Jacobians(
        network, about_jacobians, batches["jacobian_data"], config.jacobian_sources, config.seed, progress,
        config.jacobian_queries, kept, streams,
    )  # fmt: skip
    source = JacobianSource(
        clock.timing("Jacobians", jacobians.to_next), clock.timing("Jacobians", jacobians.to_end)
    )
    with clock("bases"):
        floors = config.variance_floor, config.jacobian_floor
        chosen = Settings(config.basis, *floors, rotate, config.seed, config.isolate)
        return fit(network.nodes, statistics.layers, source, chosen)


def _streams(network: Network, batches: Batches, gigabytes: float, folder: Path | None) -> StoredStreams:
    """Where activations are kept between passes; a shuffling DataLoader's are never the same twice."""
    if not 0 <= gigabytes < math.inf:
        raise InterbasisError(f"cache_gigabytes is a number from 0 on, received {gigabytes}")
    budget = 0 if batches.shuffled else int(gigabytes * 2**30)
    return StoredStreams(network, len(batches), budget, folder)


def _decisive(network: Network, batches: dict[str, Batches], config: BuildConfig) -> dict[str, Any]:
    """Everything that decides a graph's bits: unfinished work goes on only where all of it is the same."""
    for data in batches.values():
        if data.shuffled:
            raise InterbasisError(
                f"{data.name}: a shuffling DataLoader sees another order with every pass, so a build of it "
                "cannot be resumed; turn shuffling off"
            )
    return config.model_dump() | {
        "model": network.fingerprint(),
        **{name: data.fingerprint() for name, data in batches.items()},
        **surroundings(),
    }


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
