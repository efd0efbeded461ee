"""`interbasis shards`: the jobs of a build in shards."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.base.records import Record
from interbasis.cli import common
from interbasis.cli.build import BuildOptions, chosen_settings


class JobOptions(Record):
    """Division of the work into jobs."""

    out: Path
    """Folder of the run, which all jobs can read and write."""
    shards: int
    """Jobs of each round."""
    slurm: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Print a script that submits all jobs to SLURM."""
    config: Path | None = None
    """TOML, YAML or JSON with any settings of build, or a run; options take precedence over it."""


def shards(
    model: Annotated[str | None, Parameter(help="As for build.")] = None,
    /,
    *,
    jobs: Annotated[JobOptions, common.Flat],
    options: Annotated[BuildOptions | None, common.Flat] = None,
    trust: common.Trust = False,
    as_json: common.AsJson = False,
) -> None:
    """List the jobs that build a run in shards, or print a script for SLURM.

    The jobs run in rounds, each followed by a merge. The settings are those of build. Nothing is computed.

    Example: interbasis shards modadd --shards 16 --slurm --out runs/lib
    """
    from interbasis.run.request import requested
    from interbasis.run.shards import shard_jobs
    from interbasis.show.result_tables import job_list

    request = requested(chosen_settings(model, options), jobs.config, trusted=trust)
    result = shard_jobs(request, jobs.out, jobs.shards)
    if as_json:
        common.print_text(result.to_json(indent=2))
    else:
        common.print_text(result.slurm().rstrip("\n") if jobs.slurm else job_list(result))
