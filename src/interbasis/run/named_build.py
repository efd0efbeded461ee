"""Build from names of a model and data to a run's folder, as `interbasis build` does."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from interbasis.base.errors import InterbasisError
from interbasis.base.files import check_writable
from interbasis.base.memory import return_freed_memory
from interbasis.base.progress import Progress
from interbasis.compute.locks import building, working
from interbasis.compute.team import ALONE, Resources, Team, torchrun_team
from interbasis.data.samples import Samples
from interbasis.graph import store
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.named_models import Model, at_one_commit, open_model
from interbasis.graph.named_sources import split_options, with_relative_names
from interbasis.graph.precision import Precision
from interbasis.graph.settings import SAMPLING, BuildRequest, BuildTarget
from interbasis.graph.trust import trust
from interbasis.lib.build_data import BuildData
from interbasis.network.network import Network
from interbasis.run.execution import Execution, execute
from interbasis.run.run import Run


def build_by_name(
    request: BuildRequest,
    folder: Path,
    *,
    overwrite: bool = False,
    resources: Resources | None = None,
    progress: Progress | bool | None = None,
    remedy: str = "name a new folder or add --overwrite",
) -> Run:
    """Build the graph that was asked for in its folder; one that is there already is opened.

    Args:
        request: Model, data and settings by name.
        folder: Where the run is saved; unfinished work in it is resumed.
        overwrite: Replace a run that was built with other settings.
        resources: Limits on memory and disk space, and the device.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.
        remedy: What to do if the folder holds a run that was built with other settings, for the message.

    Returns:
        The run, opened for the analyses that follow.

    Raises:
        InterbasisError: The folder holds something else, or model or data cannot be opened.
    """
    team = torchrun_team()
    progress = progress if team.is_first else False
    store.check_is_free(folder)
    check_writable(folder)
    resources = resources or Resources()
    prepared = prepare(request, resources.bytes, team)
    network, resolved = prepared.network, prepared.request
    wanted = with_relative_names(resolved)
    wanted = wanted if request.threads else wanted.model_copy(update={"threads": None})
    if not overwrite and _is_run(folder, team):
        with working(folder, "build", team, alone=False):  # stages may go on with a run that is there
            built = _built_already(folder, wanted, network.fingerprint(), remedy)
        if built is not None:
            return prepared.run(*built, folder, progress)
    with building(folder, team=team):
        built = None
        if not overwrite and _is_run(folder, team):  # built by another command a moment ago
            built = _built_already(folder, wanted, network.fingerprint(), remedy)
        if built is not None:
            graph, digest = built
        else:
            execution = Execution(
                resources, folder, overwrite, progress, team, resolved.model, resolved, request.target,
                keep=partial(store.save, folder=folder, signed=True, unfinished=True),
            )  # fmt: skip
            graph = execute(network, prepared.data, request.settings, execution)
            if team.is_first:
                store.save(graph, folder, signed=True)
            team.wait_for_all()
            digest = store.graph_digest(folder)
            if resources.bytes is not None:
                graph = store.reopened(graph, folder)
        team.wait_for_all()
    return prepared.run(graph, digest, folder, progress)


def _is_run(folder: Path, team: Team) -> bool:
    """Whether there is a run already, as the first process sees it."""
    _, answer = team.once("run", lambda: ({}, {"exists": (folder / store.CONFIG).is_file()}))
    return bool(answer["exists"])


@dataclass(frozen=True, eq=False)
class Prepared:
    """Model, network and data that a request names, opened."""

    model: Model
    network: Network
    """The network between the layers that were asked for."""
    data: BuildData
    request: BuildRequest
    """The request with all that was left open."""

    def run(
        self, graph: InteractionGraph, digest: str, folder: Path, progress: Progress | bool | None
    ) -> Run:
        """A graph of this request as a run in its folder."""
        return Run(
            graph=graph, folder=folder, digest=digest, given_network=self.network, given_model=self.model,
            progress=progress, built_here=True,
        )  # fmt: skip


def prepare(request: BuildRequest, memory: int | None = None, team: Team = ALONE) -> Prepared:
    """Open the model and data that a request names, with the threads that it names.

    A model that would take more than half of the memory stays in its files.
    """
    import torch

    if request.threads and request.threads != torch.get_num_threads():
        torch.set_num_threads(request.threads)
    if memory is not None:
        return_freed_memory()
    model = open_model(request.model, memory)
    data = _open(model, request.data, team)
    other_data = {
        name: None if (spec := getattr(request, name)) is None else _open(model, spec, team)
        for name in ("jacobian_data", "edge_data")
    }
    specs = {"data": data.spec} | {
        name: other.spec for name, other in other_data.items() if other is not None
    }
    resolved = request.model_copy(update=specs | {"threads": torch.get_num_threads()})
    network = model.network.between(request.layers) if request.layers else model.network
    named = "classes" in split_options(data.spec)[1]
    known = data.classes if named or len(data.classes) == network.output_count else ()
    network = network.named(request.model_name or "", known)
    return Prepared(model, network, BuildData.from_data(data, **other_data), resolved)


def _open(model: Model, spec: str | None, team: Team) -> Samples:
    return at_one_commit(model.open_data(spec), team, model.open_data)


def _built_already(
    folder: Path, request: BuildRequest, model: str, remedy: str
) -> tuple[InteractionGraph, str] | None:
    """The graph that is there and its digest, if it is what was asked for; another one is in the way.

    None where it is a round of the build that was asked for, or one with a larger error.
    """
    graph, digest = store.load_identified(folder)
    if difference := _difference(graph, request, model):
        raise InterbasisError(f"{folder} exists already, built {difference}; {remedy}")
    if _goes_on(graph.provenance.precision or Precision(), request.target, folder):
        return None
    store.clear_older(folder)  # as after a kill at the very end
    trust(folder)  # the user has given the same names just now
    return graph, digest


def _goes_on(precision: Precision, target: BuildTarget, folder: Path) -> bool:
    """Whether a run has a larger error than is asked for now, or its build did not end."""
    unfinished = store.is_unfinished(folder)
    if target.error is None:
        return unfinished and target.time is not None
    smaller = precision.error is None or target.error < precision.error
    return precision.reached > target.error and (smaller or unfinished)


def _difference(graph: InteractionGraph, request: BuildRequest, model: str) -> str:
    """Difference between a run and what is asked for, in words; threads count if their number was given."""
    if graph.provenance.model_fingerprint != model:
        return "from other weights"
    built = graph.provenance.request
    if built is None:
        return "in Python"
    if graph.provenance.model != request.model:
        return f"with model = {graph.provenance.model}, not {request.model}"
    if request.norm_limit is None and graph.config.norm_limit is None and graph.provenance.predicts_next:
        return "by a version that left no massive tokens out"
    decided = {*BuildTarget.model_fields}
    if not (request.exact or request.settings.sampled):
        decided |= {*SAMPLING}  # by a trial
    elif request.exact and graph.config.sampled:
        return "from samples, not exactly"
    for name, value in request:
        if name in decided or (name == "threads" and value is None):
            continue
        if getattr(built, name) != value:
            return f"with {name} = {getattr(built, name)}, not {value}"
    return ""
