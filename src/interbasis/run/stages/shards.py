"""Build in shards: jobs that never meet compute parts of a round, and merges finish the run.

`RUN/shards` holds the shards and what earlier rounds left; the finished run holds neither.
"""

from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.settings import BuildRequest
from interbasis.graph.store import check_is_free
from interbasis.run.opened import OpenedRun
from interbasis.run.stages.build import Prepared, prepare
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.files import check_writable
from interbasis.runtime.locks import building, only_task
from interbasis.runtime.progress import Progress
from interbasis.runtime.records import Record
from interbasis.runtime.shards import (
    SHARDS,
    RoundFinishedError,
    ShardJob,
    ShardMerge,
    Shards,
    shard_files,
)
from interbasis.runtime.team import team_of_torchrun


class ShardWritten(Record):
    """The part of one round that a job has computed."""

    file: str
    shard: int
    shards: int
    round: int
    rounds: int
    passes: tuple[str, ...]
    """What the round sums."""


class RoundMerged(Record):
    """A round is complete, and the next one can be computed."""

    round: int
    rounds: int
    shards: int
    following: tuple[str, ...]
    """What the next round sums."""


def compute(
    request: BuildRequest, folder: Path, shard: tuple[int, int], progress: Progress | bool | None = None
) -> ShardWritten:
    """Compute one shard of the round that the run in ``folder`` has come to.

    Args:
        request: Model, data and settings by name.
        folder: Folder of the run; the shard is written to its subfolder ``shards``.
        shard: Number of the shard, from 1, and how many there are.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.

    Returns:
        Where the shard is, and which round it belongs to; one that is there already is not computed again.

    Raises:
        InterbasisError: The folder holds something else, or earlier rounds had other settings.
    """
    if team_of_torchrun().size > 1:
        raise InterbasisError("--shard is for jobs of one process; start it without torchrun")
    _check_unfinished(folder)
    prepared, (number, count) = prepare(request), shard
    total = _rounds(prepared)
    try:
        with only_task(folder, f"shard {number} of {count}"):
            _build(prepared, folder, ShardJob(folder / SHARDS, number - 1, count), progress)
    except RoundFinishedError as end:
        return ShardWritten(
            file=str(end.file), shard=number, shards=count, round=end.round, rounds=total, passes=end.passes
        )
    raise AssertionError("a job ends with its shard")


def merge(
    shards: Sequence[Path], folder: Path, progress: Progress | bool | None = None
) -> OpenedRun | RoundMerged:
    """Join the shards of one round, in any order, and go on as far as possible without the data.

    Args:
        shards: Files, or folders that hold them.
        folder: Folder of the run.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.

    Returns:
        The finished run, or which round comes next.

    Raises:
        InterbasisError: A shard is missing, doubled, truncated, or of another build.
    """
    _check_unfinished(folder)
    with building(folder, "merge"):
        return _merge(shards, folder, progress)


def _merge(shards: Sequence[Path], folder: Path, progress: Progress | bool | None) -> OpenedRun | RoundMerged:
    team = ShardMerge(folder / SHARDS, shard_files(shards))
    if not team.request:
        raise InterbasisError(
            "these shards were computed from Python and do not name their model and data; merge them with "
            "interbasis.build(…, team=interbasis.runtime.shards.ShardMerge(…))"
        )
    prepared = prepare(BuildRequest.model_validate_json(team.request))
    merged = team.round
    try:
        graph = _build(prepared, folder, team, progress)
    except RoundFinishedError as end:
        return RoundMerged(round=merged, rounds=_rounds(prepared), shards=team.size, following=end.passes)
    graph.save(folder)
    rmtree(folder / SHARDS, ignore_errors=True)
    return OpenedRun(
        graph=graph, network=prepared.network, folder=folder, model=prepared.model, progress=progress
    )


def _build(
    prepared: Prepared, folder: Path, team: Shards, progress: Progress | bool | None
) -> InteractionGraph:
    from interbasis.fit.build import build

    request = prepared.request
    return build(
        prepared.network, prepared.data, jacobian_data=prepared.jacobian_data, edge_data=prepared.edge_data,
        model=request.model, request=request, resume=folder, progress=progress, team=team,
        **request.settings.model_dump(),
    )  # fmt: skip


def _rounds(prepared: Prepared) -> int:
    from interbasis.fit.rounds import rounds

    separate = prepared.jacobian_data is not None
    return len(rounds(prepared.network, prepared.request.settings, separate))


def _check_unfinished(folder: Path) -> None:
    """The folder is new, or holds unfinished work only."""
    check_is_free(folder)
    check_writable(folder)
    if (folder / "config.json").is_file():
        raise InterbasisError(
            f"{folder} holds a finished run; name a new folder for one that is built in shards"
        )
