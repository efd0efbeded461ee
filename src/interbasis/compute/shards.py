"""Work of jobs that never meet: each writes its part of a round's sums to a file, and a merge joins them.

A build is a few rounds, each a pass over the data whose sums the next rounds depend on. In a round, every job
(`ShardJob`) sums its share of the data and ends; `ShardMerge` checks that all shards are there, joins them in
the order that one process would have, goes on as far as it can without data, and stores what the jobs of the
next round need. Nothing depends on the order in which shards are given, or on who computed them.

    FOLDER/round-1.shard-3-of-16.safetensors    the sums of one job
    FOLDER/round-1.merged.safetensors           those of all, and what followed from them
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from interbasis.base.errors import InterbasisError
from interbasis.base.files import inside, make_folder, write_atomically
from interbasis.base.records import Record
from interbasis.base.tensor_file import digest_of
from interbasis.compute.checkpoints import State, alone, first_change
from interbasis.compute.team import BlockSum, Team

SHARDS = "shards"
"""Folder of a run in which shards are written and merged."""
MERGED = re.compile(r"round-(\d+)\.merged\.safetensors")
SHARD = re.compile(r"round-(\d+)\.shard-(\d+)-of-(\d+)\.safetensors")


class ShardHeader(Record):
    """What a file of sums says of itself."""

    kind: Literal["shard", "merged"]
    round: int
    """From 1."""
    passes: tuple[str, ...]
    """The passes over data that the round consists of."""
    shard: int
    """From 1; of a merged file, 0."""
    shards: int
    settings: dict[str, object]
    """Everything that decides the result: settings, fingerprints of model and data, versions."""
    request: str
    """The build's request as JSON; empty where it was not made by name."""
    keys: tuple[str, ...]
    """What the file holds; tensors of the k-th key are called k/NAME."""


NUMBER = "SHARD"
"""Stands for a shard's number in a command."""


class ShardRound(Record):
    """One round: as many jobs as there are shards, all at the same time, and a merge after them."""

    passes: tuple[str, ...]
    """What the round sums over the data."""
    job: str
    """Command of every job, with SHARD for its number from 1."""
    merge: str
    """Command that follows when all of them have ended."""


class ShardJobs(Record):
    """All jobs of a build in shards."""

    shards: int
    rounds: tuple[ShardRound, ...]

    def slurm(self) -> str:
        """A script that submits all rounds, each of which waits for the one before it."""
        lines = [
            "#!/bin/bash",
            f"# {len(self.rounds)} rounds of {self.shards} jobs, each followed by a merge. Options of sbatch",
            "# (partition, time, memory) can be given to this script.",
            "set -euo pipefail",
            "after=",
        ]
        for number, one in enumerate(self.rounds, 1):
            job = one.job.replace(f"{NUMBER}/{self.shards}", f"$SLURM_ARRAY_TASK_ID/{self.shards}")
            lines += [
                "",
                f"# round {number}: {' and '.join(one.passes)}",
                'jobs=$(sbatch --parsable ${after:+--dependency=afterok:$after} "$@" '
                f"--array=1-{self.shards} "
                f"--wrap {shlex.quote(job)})",
                f'after=$(sbatch --parsable --dependency=afterok:$jobs "$@" --wrap {shlex.quote(one.merge)})',
            ]
        return "\n".join(lines) + "\n"


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


class RoundFinishedError(Exception):
    """A job has written its shard, or a merge has come to a round whose shards are still to be computed."""

    def __init__(self, round_: int, passes: tuple[str, ...], file: Path | None = None):
        super().__init__(f"round {round_}")
        self.round, self.passes, self.file = round_, passes, file


class StateFile:
    """A file of states by key."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                self.header = ShardHeader.model_validate_json(metadata["header"])
                self._values = json.loads(metadata["values"])
                self._digests = json.loads(metadata["digests"])
                self._names = list(file.keys())
            texts = metadata["header"], metadata["values"], metadata["digests"]
            if digest_of({}, *texts) != metadata.get("sha256"):
                raise ValueError("its SHA-256 is not the one it was written with")
        except FileNotFoundError as error:
            raise InterbasisError(f"expected a shard at {path}, but there is no such file") from error
        except (OSError, SafetensorError, KeyError, ValidationError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InterbasisError(
                f"{path} is truncated, or not a shard that interbasis wrote ({reason}); delete it and run "
                "its job again"
            ) from error

    def state(self, key: str) -> State | None:
        """What is stored under a key; None where nothing is."""
        if key not in self.header.keys:
            return None
        number = self.header.keys.index(key)
        start = f"{number}/"
        with safe_open(self.path, "pt") as file:
            # a copy, which lies in memory as a fresh tensor does: see checkpoints.py
            tensors = {
                name.removeprefix(start): file.get_tensor(name).clone()
                for name in self._names
                if name.startswith(start)
            }
        if digest_of(tensors) != self._digests[number]:
            raise InterbasisError(
                f"{self.path} is changed (the SHA-256 of {key} is not the one it was written with); delete "
                "it and run its job again"
            )
        return tensors, self._values[number]


def _write(path: Path, header: ShardHeader, states: dict[str, State]) -> None:
    tensors: dict[str, Tensor] = {}
    places: set[int] = set()
    digests = []
    for number, (own, _) in enumerate(states.values()):
        digests.append(digest_of({name: alone(tensor) for name, tensor in own.items()}))
        for name, tensor in own.items():
            plain = alone(tensor)
            # two states may hold the same layer, and safetensors refuses what lies in one place
            tensors[f"{number}/{name}"] = plain.clone() if plain.data_ptr() in places else plain
            places.add(plain.data_ptr())
    texts = header.to_json(), json.dumps([values for _, values in states.values()]), json.dumps(digests)
    metadata = dict(zip(("header", "values", "digests"), texts, strict=True)) | {
        "sha256": digest_of({}, *texts)
    }
    make_folder(path.parent)
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata))


class Shards(Team):
    """What jobs and merges share: what earlier rounds left."""

    def __init__(self, folder: Path, rank: int, size: int):
        self.rank, self.size = rank, size
        self.shards = folder
        self._settings: dict[str, object] = {}
        self._request = ""
        self._made: dict[str, State] = {}
        numbers = {int(m[1]): path for path in _listed(folder) if (m := MERGED.fullmatch(path.name))}
        self._merged = [StateFile(numbers[number]) for number in sorted(numbers)]
        for number, file in enumerate(self._merged, 1):
            if file.header.round != number:
                raise InterbasisError(f"{folder} has no merged round {number}; merge its shards again")

    @property
    def suffix(self) -> str:
        return f".shards-{self.size}/{self.rank}"

    @property
    def round(self) -> int:
        """The round whose shards are still to be computed or merged."""
        return len(self._merged) + 1

    def begin(self, settings: dict[str, object], request: str) -> None:
        """Tell what is computed, before the first pass.

        Raises:
            InterbasisError: Earlier rounds were computed with other settings.
        """
        self._settings, self._request = json.loads(json.dumps(settings)), request
        if self._merged:
            self._check(self._merged[0])

    def recalled(self, name: str) -> State | None:
        return self._stored(f"once {name}")

    def _stored(self, key: str) -> State | None:
        for file in self._merged:
            if (state := file.state(key)) is not None:
                return state
        return None

    def _stored_sums(self, passes: Sequence[BlockSum]) -> list[State]:
        states = [self._stored(f"sum {one.name}") for one in passes]
        return [state for state in states if state is not None]

    def _header(
        self, kind: Literal["shard", "merged"], passes: tuple[str, ...], keys: Iterable[str]
    ) -> ShardHeader:
        return ShardHeader(
            kind=kind, round=self.round, passes=passes, shard=self.rank + 1 if kind == "shard" else 0,
            shards=self.size, settings=self._settings, request=self._request, keys=tuple(keys),
        )  # fmt: skip

    def _check(self, file: StateFile) -> None:
        """A file was computed with the settings of this command."""
        if changed := first_change(file.header.settings, self._settings):
            raise InterbasisError(
                f"{file.path} was computed {_with(changed[0], changed[1])}, and this command is "
                f"{_with(changed[0], changed[2])}; use the same settings, or delete the folder "
                f"{self.shards} to start again"
            )


class ShardJob(Shards):
    """One of several jobs, which sums its share of the data of one round and ends."""

    @property
    def group(self) -> str:
        text = json.dumps([self.size, self._settings], sort_keys=True)
        return f"shards {hashlib.sha256(text.encode()).hexdigest()}"

    def sums(self, *passes: BlockSum) -> list[State]:
        if stored := self._stored_sums(passes):
            return stored
        names = tuple(one.name for one in passes)
        file = self.shards / f"round-{self.round}.shard-{self.rank + 1}-of-{self.size}.safetensors"
        if file.exists():
            self._check(StateFile(file))
            raise RoundFinishedError(self.round, names, file)
        states = {
            f"part {one.name} {first}-{last}": one.sum_of(first, last)
            for one in passes
            for first, last in one.nodes_within(*self.blocks_of(self.rank, one.blocks))
        }
        states |= self._made if self.is_first else {}
        _write(file, self._header("shard", names, states), states)
        raise RoundFinishedError(self.round, names, file)

    def once(self, name: str, make: Callable[[], State]) -> State:
        state = self.recalled(name) or make()
        self._made[f"once {name}"] = state
        return state

    def shared(self, name: str, count: int, work: Callable[[Sequence[int]], State]) -> State:
        return self.once(name, lambda: work(range(count if self.is_first else 0)))


class ShardMerge(Shards):
    """Joins the shards of one round, and stores what the next one needs."""

    def __init__(self, folder: Path, files: Sequence[Path]):
        self._files = complete_round([StateFile(path) for path in files])
        super().__init__(folder, 0, self._files[0].header.shards)
        header = self._files[0].header
        if header.round != self.round:
            done = "is merged already" if header.round < self.round else f"comes after round {self.round}"
            raise InterbasisError(
                f"{self._files[0].path} is of round {header.round}, which {done} in {folder}; give the "
                f"shards of round {self.round}"
            )
        self._waiting = True

    @property
    def first(self) -> StateFile:
        """The first shard, which says what all of them are of."""
        return self._files[0]

    def begin(self, settings: dict[str, object], request: str) -> None:
        super().begin(settings, request)
        for file in self._files:
            self._check(file)

    def sums(self, *passes: BlockSum) -> list[State]:
        if stored := self._stored_sums(passes):
            return stored
        names = tuple(one.name for one in passes)
        header = self._files[0].header
        if not self._waiting:
            self._store(header.passes)
            raise RoundFinishedError(self.round, names)
        if header.passes != names:
            raise InterbasisError(
                f"{self._files[0].path} holds {_listing(header.passes)}, but round {self.round} is "
                f"{_listing(names)}; delete the folder {self.shards} to start again"
            )
        self._waiting = False
        for one in passes:
            self._made[f"sum {one.name}"] = one.joined(self._parts(one))
        return [self._made[f"sum {one.name}"] for one in passes]

    def _parts(self, one: BlockSum) -> dict[tuple[int, int], State]:
        parts = {}
        for rank, file in enumerate(self._files):
            for first, last in one.nodes_within(*self.blocks_of(rank, one.blocks)):
                state = file.state(f"part {one.name} {first}-{last}")
                if state is None:
                    raise InterbasisError(
                        f"{file.path} does not hold blocks {first + 1} to {last} of {one.name}; run its job "
                        "again"
                    )
                parts[first, last] = state
        return parts

    def once(self, name: str, make: Callable[[], State]) -> State:
        key = f"once {name}"
        state = self.recalled(name) or self._files[0].state(key) or make()
        self._made[key] = state
        return state

    def shared(self, name: str, count: int, work: Callable[[Sequence[int]], State]) -> State:
        return self.once(name, lambda: work(range(count)))

    def _store(self, passes: tuple[str, ...]) -> None:
        new = {key: state for key, state in self._made.items() if self._stored(key) is None}
        path = self.shards / f"round-{self.round}.merged.safetensors"
        _write(path, self._header("merged", passes, new), new)
        self._merged.append(StateFile(path))


def complete_round(files: Sequence[StateFile]) -> list[StateFile]:
    """The shards of one round in their order, if each is there once and all were computed alike.

    Raises:
        InterbasisError: A shard is missing, is there twice, or is of another round, number of shards, model,
            data, setting or version.
    """
    if not files:
        raise InterbasisError("expected shards to merge, but there are none; run the jobs of the round first")
    ordered = sorted(files, key=lambda file: (file.header.round, file.header.shard, str(file.path)))
    for file in ordered:
        if file.header.kind != "shard":
            raise InterbasisError(f"{file.path} is a merged round, not a shard; leave it out")
    for one, other in pairwise(ordered):
        a, b = one.header, other.header
        if a.round != b.round:
            raise InterbasisError(
                f"{one.path} is of round {a.round} and {other.path} of round {b.round}; give the shards of "
                "one round"
            )
        if a.shards != b.shards:
            raise InterbasisError(
                f"{one.path} is one of {a.shards} shards and {other.path} one of {b.shards}; give shards of "
                "one division"
            )
        if changed := first_change(a.settings, b.settings):
            name, before, now = changed
            raise InterbasisError(
                f"{one.path} was computed {_with(name, before)} and {other.path} {_with(name, now)}; run the "
                "job of one of them again"
            )
        if a.shard == b.shard:
            raise InterbasisError(
                f"shard {a.shard} of {a.shards} is given twice, as {one.path} and as {other.path}; leave one "
                "out"
            )
    header = ordered[0].header
    there = {file.header.shard for file in ordered}
    if missing := [number for number in range(1, header.shards + 1) if number not in there]:
        which = ", ".join(f"{number}/{header.shards}" for number in missing)
        raise InterbasisError(
            f"round {header.round} lacks the shard{'s' * (len(missing) > 1)} {which}; run the job "
            f"with --shard {missing[0]}/{header.shards}"
        )
    return ordered


def shard_files(paths: Sequence[Path]) -> list[Path]:
    """Files that were named; of a folder, the shards of its latest round that has any."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        found = {file: int(m[1]) for file in _listed(path) if (m := SHARD.fullmatch(file.name))}
        files += [file for file, number in sorted(found.items()) if number == max(found.values())]
    return files


def read_shard_number(text: str) -> tuple[int, int]:
    """3/16 as (3, 16)."""
    shard, slash, shards = text.partition("/")
    if not (slash and shard.isdecimal() and shards.isdecimal() and 1 <= int(shard) <= int(shards)):
        raise InterbasisError(f"expected a shard as NUMBER/SHARDS, for instance 3/16, received {text!r}")
    return int(shard), int(shards)


def _listed(folder: Path) -> list[Path]:
    return sorted(inside(folder, path.name) for path in folder.iterdir()) if folder.is_dir() else []


def _listing(passes: Sequence[str]) -> str:
    return " and ".join(passes)


def _with(name: str, value: object) -> str:
    """How a setting reads in a sentence."""
    if name == "model":
        return f"with model {str(value)[:12]}"
    if name.endswith("data"):
        return f"with {name} {str(value)[:12]}"
    return f"with {name} = {value}"
