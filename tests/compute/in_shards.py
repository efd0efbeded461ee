"""Builds in shards, computed and merged in random order, for tests."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interbasis.compute.shards import RoundFinishedError, ShardJob, ShardMerge, shard_files


def in_shards(folder: Path, count: int, build: Callable[..., Any]) -> tuple[Any, list[tuple[str, ...]]]:
    """build(team=…) in rounds of shards, computed and merged in random order; the graph and its rounds."""
    order, taken = random.Random(0), []
    while True:
        for rank in order.sample(range(count), count):
            with pytest.raises(RoundFinishedError) as end:
                build(team=ShardJob(folder, rank, count))
        taken.append(end.value.passes)
        files = order.sample(shard_files([folder]), count)
        try:
            return build(team=ShardMerge(folder, files)), taken
        except RoundFinishedError:
            continue
