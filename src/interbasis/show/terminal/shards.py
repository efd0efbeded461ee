"""What builds in shards tell a terminal."""

from pathlib import Path

from rich.console import RenderableType

from interbasis.compute.shards import RoundMerged, ShardJobs, ShardWritten


def written_tables(written: ShardWritten) -> list[RenderableType]:
    """One line on the shard that a job has written."""
    what = " and ".join(written.passes)
    return [
        f"round {written.round} of {written.rounds} ({what}): shard {written.shard} of "
        f"{written.shards} is in {written.file}",
    ]


def merged_tables(merged: RoundMerged, run: Path) -> list[RenderableType]:
    """One line on the round that is merged and the next one."""
    what = " and ".join(merged.following)
    return [
        f"round {merged.round} of {merged.rounds} is merged in {run}; run the same "
        f"{merged.shards} jobs again for round {merged.round + 1} ({what})",
    ]


def job_list(jobs: ShardJobs) -> str:
    """The rounds with their commands, as plain text to copy from."""
    lines = [f"{len(jobs.rounds)} rounds of {jobs.shards} jobs; SHARD is 1 to {jobs.shards}"]
    for number, one in enumerate(jobs.rounds, 1):
        lines += [f"round {number}: {' and '.join(one.passes)}", f"  {one.job}", f"  {one.merge}"]
    return "\n".join(lines)
