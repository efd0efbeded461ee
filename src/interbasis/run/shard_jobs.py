"""The jobs that build a run in shards: the rounds, what to run in each, and a script for SLURM."""

import shlex
from pathlib import Path

from interbasis.base.errors import InterbasisError
from interbasis.compute.shards import NUMBER, SHARDS, ShardJobs, ShardRound
from interbasis.graph.settings import BuildRequest


def shard_jobs(request: BuildRequest, out: Path, shards: int) -> ShardJobs:
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
    from interbasis.graph.named_models import open_model
    from interbasis.lib.rounds import rounds

    if shards < 1:
        raise InterbasisError(f"expected at least one shard, received {shards}")
    network = open_model(request.model).network
    network = network.between(request.layers) if request.layers else network
    job = shlex.join([*_command(request), "--out", str(out), "--shard", f"{NUMBER}/{shards}"])
    merge = shlex.join(["interbasis", "merge", str(out / SHARDS), "--out", str(out)])
    separate = request.jacobian_data is not None
    return ShardJobs(
        shards=shards,
        rounds=tuple(
            ShardRound(passes=passes, job=job, merge=merge)
            for passes in rounds(network, request.settings, separate)
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
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", ",".join(value) if isinstance(value, tuple) else str(value)]
    return words
