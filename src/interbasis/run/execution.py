"""Execution of a build: device, processes, blocks, memory, the folder of unfinished work."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from interbasis.base.devices import require_dtype, torch_device
from interbasis.base.errors import InterbasisError
from interbasis.base.memory import limited_workspace
from interbasis.base.progress import Progress, progress_bar
from interbasis.compute.checkpoints import environment
from interbasis.compute.executor import Executor, most_blocks
from interbasis.compute.locks import building
from interbasis.compute.shards import RoundFinishedError, Shards
from interbasis.compute.team import ALONE, Resources, Team, team_checkpoints
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.named_sources import relative_name, with_relative_names
from interbasis.graph.settings import SAMPLING, BuildConfig, BuildRequest, BuildTarget
from interbasis.lib.build import build, with_network_defaults
from interbasis.lib.build_data import BuildData
from interbasis.lib.empty_layers import EmptyLayersError
from interbasis.lib.goal import NO_GOAL
from interbasis.lib.memory import MemoryPlan
from interbasis.network.network import Network
from interbasis.run.target import Decision, decide

NOT_SHARED = ("threads", "python")
"""Settings that may differ between the jobs that compute shards of one build."""


@dataclass(frozen=True)
class Execution:
    """Resources, folder and processes of a build; the graph is the same up to its last digits."""

    resources: Resources = field(default_factory=Resources)
    folder: Path | None = None
    """The folder the graph will be saved in, where unfinished work is stored; None: nowhere."""
    restart: bool = False
    """Discard unfinished work that was begun with other settings instead of refusing it."""
    progress: Progress | bool | None = None
    team: Team = ALONE
    """The processes that share the work, each with a part of the samples."""
    model: str = ""
    """A name to remember the model by."""
    request: BuildRequest | None = None
    """The request by name, stored with the graph."""
    target: BuildTarget = field(default_factory=BuildTarget)
    """Error or time asked for, or exact."""
    keep: Callable[[InteractionGraph], object] | None = None
    """Called in the first process with the graph after every round but the last."""

    @property
    def names(self) -> dict[str, object]:
        """Fields of the provenance that say what the build was asked for by name, without absolute paths."""
        request = self.request and with_relative_names(self.request)
        names: dict[str, object] = {"model": relative_name(self.model), "request": request}
        if self.request is not None and self.folder is not None:
            names["working_folder"] = os.path.relpath(os.curdir, self.folder)
        return names


def execute(network: Network, data: BuildData, config: BuildConfig, execution: Execution) -> InteractionGraph:
    """Build the graph of a network; a build that was interrupted resumes.

    Raises:
        InterbasisError: The data do not fit the network, memory does not suffice, or unfinished work was
            begun with other settings.
        RoundFinishedError: One shard of the build is computed.
    """
    config = with_network_defaults(network, config)
    resources, team = execution.resources, execution.team
    computing = computing_network(network, config, resources.device)
    plan = _memory_plan(computing, data, config, resources.bytes)
    executor = Executor(
        computing, team,
        blocks=most_blocks(network) if resources.memory is None else None,
        chunk_bytes=plan.chunk_bytes, windows=plan.windows,
        cache_bytes=int(resources.cache_gigabytes * 2**30),
    )  # fmt: skip
    decisive = None
    if execution.folder is not None or isinstance(team, Shards):
        decisive = _decisive(network, data, config, executor)
        if resources.memory is not None:
            decisive["memory"] = [list(map(list, plan.windows)), plan.chunk_bytes, plan.workspace]
    if isinstance(team, Shards):  # they are exact; their settings decide with whom they share the lock
        request = "" if execution.request is None else execution.request.to_json()
        assert decisive is not None
        team.begin(shared_settings(decisive), request)
    with building(execution.folder, team=team, group=team.group):
        decision = decide(
            computing, data, config, execution.target, folder=execution.folder, team=team, decisive=decisive,
            in_parts=len(plan.windows) > 1, restart=execution.restart,
        )  # fmt: skip
        data.check_order(decision.config)
        if decisive is not None:
            decisive |= decision.config.model_dump(mode="json", include=set(SAMPLING))
            if decision.goal != NO_GOAL:
                decisive["goal"] = [decision.precision.error, decision.precision.time]
            restart = execution.restart
            checkpoints = team_checkpoints(execution.folder, "build", decisive, team, restart=restart)
            executor = replace(executor, checkpoints=checkpoints)
        return _build(network, data, decision, execution, executor, plan)


def _build(
    network: Network,
    data: BuildData,
    decision: Decision,
    execution: Execution,
    executor: Executor,
    plan: MemoryPlan,
) -> InteractionGraph:
    """Build the graph that was decided on, and keep that of every round."""

    def named(graph: InteractionGraph) -> InteractionGraph:
        decided = graph.config.model_dump(include=set(SAMPLING)) | {"error": None, "time": None}
        decided["exact"] = not graph.config.sampled
        names = execution.names
        request = names["request"]
        if isinstance(request, BuildRequest):
            names["request"] = request.model_copy(update=decided)
        names |= {"precision": decision.reached(graph)}
        return replace(graph, provenance=graph.provenance.model_copy(update=names))

    def keep(graph: InteractionGraph) -> None:
        if execution.keep is not None and execution.team.is_first:
            execution.keep(named(graph))

    try:
        with progress_bar(execution.progress) as advance, limited_workspace(plan.workspace):
            executor = replace(executor, progress=advance)
            return named(build(network, data, decision.config, executor, decision.goal, keep))
    except RoundFinishedError:
        executor.checkpoints.finish()
        raise
    except EmptyLayersError:
        executor.checkpoints.finish(keeps_run=False)
        raise


def _decisive(
    network: Network, data: BuildData, config: BuildConfig, executor: Executor
) -> dict[str, object]:
    """Everything that decides a graph's bits: unfinished work is resumed only if it is the same."""
    for batches in data.by_name.values():
        if batches.shuffled:
            raise InterbasisError(
                f"{batches.name}: a shuffling DataLoader changes its order with every pass, so a build "
                "of it cannot be resumed; turn shuffling off"
            )
    commits = {
        f"revision of {name}": batches.revision for name, batches in data.by_name.items() if batches.revision
    }
    return config.model_dump() | commits | {
        "memory": None, "model": network.fingerprint(), **data.fingerprints(executor), **environment(),
    }  # fmt: skip


def shared_settings(decisive: dict[str, object]) -> dict[str, object]:
    """Of everything that decides a graph's bits, what must be the same in all shards."""
    return {name: value for name, value in decisive.items() if name not in NOT_SHARED}


def computing_network(network: Network, config: BuildConfig, device: str | None) -> Network:
    """The network in the dtype and on the device that it computes in."""
    target = network.device if device is None else torch_device(device)
    require_dtype(target, config.torch_dtype)
    if (target, config.torch_dtype) == (network.device, network.dtype):
        return network
    return network.to(target, config.torch_dtype)


def _memory_plan(network: Network, data: BuildData, config: BuildConfig, limit: int | None) -> MemoryPlan:
    """Plan that fits the build into the memory."""
    if limit is None:
        return MemoryPlan.whole(network)
    positions = network.prefix(data.data.first().to(network.device)).shape[1]
    plan = MemoryPlan.within(limit, network, positions * len(data.data), config)
    if len(plan.windows) > 1 and any(batches.shuffled for batches in data.by_name.values()):
        raise InterbasisError(
            "sections that do not fit in memory together are built one after the other over the same "
            "samples, but a shuffling DataLoader gives other ones each time; turn shuffling off"
        )
    return plan
