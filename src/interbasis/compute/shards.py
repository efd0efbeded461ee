"""Builds in shards: each job writes its part of a round's sums to a file, and a merge joins them.

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
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.files import inside, make_folder, write_atomically
from interbasis.base.records import Record
from interbasis.base.tensor_file import Entry, tensor_digest, write_tensors
from interbasis.compute.block_sums import BlockSum
from interbasis.compute.checkpoints import State, first_change
from interbasis.compute.team import Team

SHARDS = "shards"
"""Folder of a run in which shards are written and merged."""
MERGED = re.compile(r"round-(\d+)\.merged\.safetensors")
SHARD = re.compile(r"round-(\d+)\.shard-(\d+)-of-(\d+)\.safetensors")


class ShardHeader(Record):
    """Header of a file of sums."""

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
    """Keys of the states in the file; tensors of the k-th key are called k/NAME."""


NUMBER = "SHARD"
"""Stands for a shard's number in a command."""


class ShardRound(Record):
    """One round: as many jobs as there are shards, all at the same time, and a merge after them."""

    passes: tuple[str, ...]
    """Names of the sums over the data."""
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
        for number, shard_round in enumerate(self.rounds, 1):
            job = shard_round.job.replace(f"{NUMBER}/{self.shards}", f"$SLURM_ARRAY_TASK_ID/{self.shards}")
            lines += [
                "",
                f"# round {number}: {' and '.join(shard_round.passes)}",
                'jobs=$(sbatch --parsable ${after:+--dependency=afterok:$after} "$@" '
                f"--array=1-{self.shards} "
                f"--wrap {shlex.quote(job)})",
                'after=$(sbatch --parsable --dependency=afterok:$jobs "$@" '
                f"--wrap {shlex.quote(shard_round.merge)})",
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
    """Names of its sums over the data."""


class RoundMerged(Record):
    """A round is complete, and the next one can be computed."""

    round: int
    rounds: int
    shards: int
    following: tuple[str, ...]
    """Names of the sums of the next round."""


class RoundFinishedError(Exception):
    """A job has written its shard, or a merge has come to a round whose shards are still to be computed."""

    def __init__(self, round_: int, passes: tuple[str, ...], file: Path | None = None):
        super().__init__(f"round {round_}")
        self.round, self.passes, self.file = round_, passes, file


class StateFile:
    """A file of states by key."""

    def __init__(self, path: Path):
        self.path = path
        if not path.exists():
            raise InterbasisError(f"expected a shard at {path}, but there is no such file")
        errors, remedy = (OSError, SafetensorError, KeyError, ValueError), "delete it and run its job again"
        with Explained(f"{path} is truncated, or not a shard that interbasis wrote", *errors, remedy=remedy):
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                self.header = ShardHeader.model_validate_json(metadata["header"])
                self._values = json.loads(metadata["values"])
                self._digests = json.loads(metadata["digests"])
                self._names = list(file.keys())
            texts = metadata["header"], metadata["values"], metadata["digests"]
            if tensor_digest({}, *texts) != metadata.get("sha256"):
                raise ValueError("its SHA-256 is not the one it was written with")

    def state(self, key: str) -> State | None:
        """Return the state of a key; None where there is none."""
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
        if tensor_digest(tensors) != self._digests[number]:
            raise InterbasisError(
                f"{self.path} is changed (the SHA-256 of {key} is not the one it was written with); delete "
                "it and run its job again"
            )
        return tensors, self._values[number]


class Shards(Team):
    """A job or a merge of a build in shards, with the results of earlier rounds."""

    def __init__(self, folder: Path, rank: int, size: int, files: Sequence[StateFile] = ()):
        self.rank, self.size = rank, size
        self.shards = folder
        self._files = files
        """Shards to merge, in their order; empty in a job."""
        self._settings: dict[str, object] = {}
        self._request = ""
        self._results: dict[str, State] = {}
        """States of this round by key."""
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
        """Number of the round whose shards are still to be computed or merged."""
        return len(self._merged) + 1

    def begin(self, settings: dict[str, object], request: str) -> None:
        """Set what is computed, before the first pass.

        Raises:
            InterbasisError: Earlier rounds, or the shards to merge, were computed with other settings.
        """
        self._settings, self._request = json.loads(json.dumps(settings)), request
        for file in (*self._merged[:1], *self._files):
            self._check(file)

    def sums(self, *passes: BlockSum) -> list[State]:
        stored = [self._stored(f"sum {block_sum.name}") for block_sum in passes]
        states = [state for state in stored if state is not None]
        return states or self._new_sums(passes, tuple(block_sum.name for block_sum in passes))

    def _new_sums(self, passes: Sequence[BlockSum], names: tuple[str, ...]) -> list[State]:
        """Return sums that no earlier round has stored."""
        raise NotImplementedError

    def recall(self, name: str) -> State | None:
        return self._stored(f"once {name}")

    def once(self, name: str, make: Callable[[], State]) -> State:
        key = f"once {name}"
        state = self._stored(key) or next((file.state(key) for file in self._files[:1]), None) or make()
        self._results[key] = state
        return state

    def share(self, name: str, count: int, work: Callable[[Sequence[int]], State]) -> State:
        return self.once(name, lambda: work(range(count if self.is_first else 0)))

    def _stored(self, key: str) -> State | None:
        states = (file.state(key) for file in self._merged)
        return next((state for state in states if state is not None), None)

    def _write(
        self, path: Path, kind: Literal["shard", "merged"], passes: tuple[str, ...], states: dict[str, State]
    ) -> None:
        header = ShardHeader(
            kind=kind, round=self.round, passes=passes, shard=self.rank + 1 if kind == "shard" else 0,
            shards=self.size, settings=self._settings, request=self._request, keys=tuple(states),
        )  # fmt: skip
        entries: list[Entry] = []
        digests = []
        for number, (tensors, _) in enumerate(states.values()):
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            digests.append(tensor_digest(tensors))
            entries += [Entry.from_tensor(f"{number}/{name}", tensor) for name, tensor in tensors.items()]
        values = [values for _, values in states.values()]
        texts = header.to_json(), json.dumps(values), json.dumps(digests)
        metadata = dict(zip(("header", "values", "digests"), texts, strict=True))
        metadata["sha256"] = tensor_digest({}, *texts)
        make_folder(path.parent)
        write_atomically(path, lambda temporary: write_tensors(temporary, entries, metadata))

    def _check(self, file: StateFile) -> None:
        """Refuse a file that was computed with other settings than those of this command."""
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

    def _new_sums(self, passes: Sequence[BlockSum], names: tuple[str, ...]) -> list[State]:
        file = self.shards / f"round-{self.round}.shard-{self.rank + 1}-of-{self.size}.safetensors"
        if file.exists():
            self._check(StateFile(file))
            raise RoundFinishedError(self.round, names, file)
        states = {
            f"part {block_sum.name} {first}-{last}": block_sum.node_sum(first, last)
            for block_sum in passes
            for first, last in block_sum.nodes_within(*self.block_range(self.rank, block_sum.blocks))
        }
        self._write(file, "shard", names, states | (self._results if self.is_first else {}))
        raise RoundFinishedError(self.round, names, file)


class ShardMerge(Shards):
    """Joins the shards of one round, and stores what the next one needs."""

    def __init__(self, folder: Path, paths: Sequence[Path]):
        files = complete_round([StateFile(path) for path in paths])
        self.first = files[0]
        """The first shard, whose header describes all of them."""
        header = self.first.header
        super().__init__(folder, 0, header.shards, files)
        if header.round != self.round:
            done = "is merged already" if header.round < self.round else f"comes after round {self.round}"
            raise InterbasisError(
                f"{self.first.path} is of round {header.round}, which {done} in {folder}; give the "
                f"shards of round {self.round}"
            )
        self._is_joined = False

    def _new_sums(self, passes: Sequence[BlockSum], names: tuple[str, ...]) -> list[State]:
        header = self.first.header
        if self._is_joined:
            new = {key: state for key, state in self._results.items() if self._stored(key) is None}
            path = self.shards / f"round-{self.round}.merged.safetensors"
            self._write(path, "merged", header.passes, new)
            self._merged.append(StateFile(path))
            raise RoundFinishedError(self.round, names)
        if header.passes != names:
            raise InterbasisError(
                f"{self.first.path} holds {' and '.join(header.passes)}, but round {self.round} is "
                f"{' and '.join(names)}; delete the folder {self.shards} to start again"
            )
        self._is_joined = True
        sums = [block_sum.joined(self._parts(block_sum)) for block_sum in passes]
        self._results |= {f"sum {name}": state for name, state in zip(names, sums, strict=True)}
        return sums

    def _parts(self, block_sum: BlockSum) -> dict[tuple[int, int], State]:
        """Sums of nodes, from all shards."""
        parts = {}
        for rank, file in enumerate(self._files):
            for first, last in block_sum.nodes_within(*self.block_range(rank, block_sum.blocks)):
                state = file.state(f"part {block_sum.name} {first}-{last}")
                if state is None:
                    raise InterbasisError(
                        f"{file.path} does not hold blocks {first + 1} to {last} of {block_sum.name}; run "
                        "its job again"
                    )
                parts[first, last] = state
        return parts


def complete_round(files: Sequence[StateFile]) -> list[StateFile]:
    """Return the shards of one round in their order, if each is there once and all were computed alike.

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
    for file, other in pairwise(ordered):
        a, b = file.header, other.header
        changed = first_change(a.settings, b.settings)
        name, before, now = changed or ("", None, None)
        refusals = {
            f"{file.path} is of round {a.round} and {other.path} of round {b.round}; give the shards of one "
            "round": a.round != b.round,
            f"{file.path} is one of {a.shards} shards and {other.path} one of {b.shards}; give shards of one "
            "division": a.shards != b.shards,
            f"{file.path} was computed {_with(name, before)} and {other.path} {_with(name, now)}; run the "
            "job of one of them again": changed,
            f"shard {a.shard} of {a.shards} is given twice, as {file.path} and as {other.path}; leave one "
            "out": a.shard == b.shard,
        }
        for sentence, is_wrong in refusals.items():
            if is_wrong:
                raise InterbasisError(sentence)
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
    """Return the files that are named; of a folder, the shards of its latest round that has any."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        rounds = {file: int(m[1]) for file in _listed(path) if (m := SHARD.fullmatch(file.name))}
        files += [file for file, number in sorted(rounds.items()) if number == max(rounds.values())]
    return files


def read_shard_number(text: str) -> tuple[int, int]:
    """Parse 3/16 as (3, 16)."""
    shard, slash, shards = text.partition("/")
    if not (slash and shard.isdecimal() and shards.isdecimal() and 1 <= int(shard) <= int(shards)):
        raise InterbasisError(f"expected a shard as NUMBER/SHARDS, for instance 3/16, received {text!r}")
    return int(shard), int(shards)


def _listed(folder: Path) -> list[Path]:
    return sorted(inside(folder, path.name) for path in folder.iterdir()) if folder.is_dir() else []


def _with(name: str, value: object) -> str:
    """Clause about a setting, for a message; hashes of models and data are shortened."""
    if name == "model" or name.endswith("data"):
        return f"with {name} {str(value)[:12]}"
    return f"with {name} = {value}"
