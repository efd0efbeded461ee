"""Build in shards: jobs that never meet compute parts of a round, and merges finish the run.

`RUN/shards` holds the shards and what earlier rounds left; the finished run holds neither.
"""

import hashlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

from pydantic import ValidationError

from interbasis.base.errors import InterbasisError, first_problem
from interbasis.base.files import check_writable, inside
from interbasis.base.progress import Progress
from interbasis.base.signatures import standing
from interbasis.compute import shards as sharding
from interbasis.compute.locks import building, only_task
from interbasis.compute.team import torchrun_team
from interbasis.dictionaries.build import GraphDictionaries
from interbasis.dictionaries.graph import is_dictionary_graph
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.named_models import open_model
from interbasis.graph.named_sources import NamedSources
from interbasis.graph.settings import BuildRequest
from interbasis.graph.store import CONFIG, check_is_free, save
from interbasis.graph.trust import require_trust, trust_names
from interbasis.lib.rounds import Round, rounds
from interbasis.network.network import Network
from interbasis.run.dictionary_run import (
    DictionaryRun,
    check_request,
    dictionary_settings,
    execute_by_name,
    parse_dictionaries,
)
from interbasis.run.execution import Execution, execute
from interbasis.run.named_build import Prepared, prepare
from interbasis.run.run import Run


def shard_jobs(request: BuildRequest, out: Path, shards: int) -> sharding.ShardJobs:
    """List the jobs that build a run in shards.

    Args:
        request: Model, data and settings by name.
        out: Folder of the run, which all jobs can read and write.
        shards: Jobs of each round.

    Returns:
        The rounds with their commands.

    Raises:
        InterbasisError: The model cannot be opened, or there is no shard.
    """
    if shards < 1:
        raise InterbasisError(f"expected at least one shard, received {shards}")
    check_request(request)
    network = open_model(request.model).network
    network = network.between(request.layers) if request.layers else network
    job = shlex.join([*_command(request), "--out", str(out), "--shard", f"{sharding.NUMBER}/{shards}"])
    merge = shlex.join(["interbasis", "merge", str(out / sharding.SHARDS), "--out", str(out)])
    return sharding.ShardJobs(
        shards=shards,
        rounds=tuple(
            sharding.ShardRound(passes=passes, job=job, merge=merge) for passes in _rounds(network, request)
        ),
    )


def _command(request: BuildRequest) -> list[str]:
    """`interbasis build …` with every setting that was given."""
    words = ["interbasis", "build", request.model]
    for name in BuildRequest.model_fields:
        value = getattr(request, name)
        if name == "model" or name not in request.model_fields_set or value is None:
            continue
        option = name.replace("_", "-")
        if name == "edge_samples":
            words += [f"--{option}", *map(str, value)]
        elif name == "dictionary":
            words += [word for entry in value for word in (f"--{option}", entry)]
        elif isinstance(value, bool):
            words += [f"--{option}"] if value else [f"--no-{option}"] * (name != "exact")
        else:
            words += [f"--{option}", ",".join(value) if isinstance(value, tuple) else str(value)]
    return words


def compute(
    request: BuildRequest, folder: Path, shard: tuple[int, int], progress: Progress | bool | None = None
) -> sharding.ShardWritten:
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
    if torchrun_team().size > 1:
        raise InterbasisError("--shard is for jobs of one process; start it without torchrun")
    _check_unfinished(folder)
    prepared, (number, count) = prepare(request), shard
    total = len(_rounds(prepared.network, prepared.request))
    try:
        with only_task(folder, f"shard {number} of {count}"):
            _build(prepared, folder, sharding.ShardJob(folder / sharding.SHARDS, number - 1, count), progress)
    except sharding.RoundFinishedError as finished:
        end = finished
    assert end.file is not None, "a job ends with its shard"
    trust_names(folder / sharding.SHARDS, _sources(prepared.request, sharding.StateFile(end.file)))
    return sharding.ShardWritten(
        file=str(end.file), shard=number, shards=count, round=end.round, rounds=total, passes=end.passes
    )


def merge(
    shards: Sequence[Path], folder: Path, progress: Progress | bool | None = None, *, trust: bool = False
) -> Run | DictionaryRun | sharding.RoundMerged:
    """Join the shards of one round, in any order, and go on as far as possible without the data.

    Args:
        shards: Files, or folders that hold them.
        folder: Folder of the run.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.
        trust: Open the model and data that shards of somebody else name.

    Returns:
        The finished run, or which round comes next.

    Raises:
        InterbasisError: A shard is missing, doubled, truncated, of another build, or of somebody else.
    """
    _check_unfinished(folder)
    with building(folder, "merge"):
        files = sharding.shard_files(shards)
        team = sharding.ShardMerge(folder / sharding.SHARDS, files)
        if not team.first.header.request:
            raise InterbasisError(
                "these shards were computed from Python and do not name their model and data; merge them "
                "with interbasis.build(…, team=interbasis.compute.shards.ShardMerge(…))"
            )
        request = _request(team.first)
        sources = _sources(request, team.first)
        places = [folder / sharding.SHARDS, *(path.parent for path in files)]
        signed = [place for place in places if standing(place, sources.content, sources.places) == "signed"]
        place = signed[0] if signed else team.first.path.parent
        if trust:
            trust_names(place, sources)
        require_trust(place, sources, sources.names)
        prepared = prepare(request)
        merged = team.round
        try:
            graph = _build(prepared, folder, team, progress)
        except sharding.RoundFinishedError as end:
            rounds_of_all = len(_rounds(prepared.network, request))
            return sharding.RoundMerged(
                round=merged, rounds=rounds_of_all, shards=team.size, following=end.passes
            )
        if isinstance(graph, DictionaryRun):
            graph.save(folder)
            rmtree(folder / sharding.SHARDS, ignore_errors=True)
            return graph
        digest = save(graph, folder, signed=True)
        rmtree(folder / sharding.SHARDS, ignore_errors=True)
        return prepared.run(graph, digest, folder, progress)


def _build(
    prepared: Prepared, folder: Path, team: sharding.Shards, progress: Progress | bool | None
) -> InteractionGraph | DictionaryRun:
    request = prepared.request
    execution = Execution(folder=folder, progress=progress, team=team, model=request.model, request=request)
    if request.dictionary:
        return execute_by_name(prepared, execution)
    return execute(prepared.network, prepared.data, request.settings, execution)


def _request(shard: sharding.StateFile) -> BuildRequest:
    try:
        return BuildRequest.model_validate_json(shard.header.request)
    except ValidationError as error:
        raise InterbasisError(
            f"{shard.path} is damaged: {first_problem(error)}; delete it and run its job again"
        ) from error


def _sources(request: BuildRequest, shard: sharding.StateFile) -> NamedSources:
    settings = json.dumps(shard.header.settings, sort_keys=True).encode()
    return NamedSources.from_request(request, hashlib.sha256(settings).hexdigest())


def _rounds(network: Network, request: BuildRequest) -> list[Round]:
    if request.dictionary:
        named = parse_dictionaries(request.dictionary)
        chosen = GraphDictionaries.from_named(network, named, only_dictionaries=request.only_dictionaries)
        return chosen.rounds(network, dictionary_settings(network, request.settings))
    return rounds(network, request.settings, request.jacobian_data is not None)


def _check_unfinished(folder: Path) -> None:
    """Check that the folder is new, or holds unfinished work only."""
    if (folder / CONFIG).is_file() or is_dictionary_graph(folder):
        raise InterbasisError(
            f"{folder} holds a finished run; name a new folder for one that is built in shards"
        )
    check_is_free(folder)
    check_writable(folder)
    inside(folder, sharding.SHARDS)
