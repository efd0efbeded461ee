"""Long work that survives being killed: its state, kept in the run's folder while it lasts.

A pass over data is a fold: a state, and chunks of samples that are added to it one after the other. What is
written now and then is the state with the number of samples in it, in one file, atomically. A pass that is
resumed goes on behind those samples and adds the same chunks in the same order, so that it ends with the
same bits. State belongs to settings; with others it is refused.

    checkpoints = Checkpoints(run, "build", settings)
    checkpoint = checkpoints.checkpoint("statistics", total=len(batches))
    total = checkpoint.tensors.get("total", zeros)
    for first, inputs in batches.chunks(size, start=checkpoint.done):
        total = total + f(inputs)
        checkpoint.save(first + len(inputs), lambda: ({"total": total}, {}))
    …
    checkpoints.finish()  # after the result is written

Work that is no sum over data, such as a search, remembers its results by name: each is computed once.

    checkpoint = checkpoints.checkpoint("edges.3", UNKNOWN_TOTAL)
    _, trial = checkpoint.remember("17", lambda: ({}, {"value": evaluate(17)}))

What is read back lies in memory as a fresh tensor does, at a multiple of 64 bytes. In a safetensors file it
lies at a multiple of 8, and there a BLAS product of a matrix and a vector rounds differently: what comes
before the first multiple of 16 is taken by itself, so that the sum has another order. A mean that was used
where it lay in the file gave another last bit of C·mean than the same mean just computed: another graph.
"""

import glob
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.files import clear_left_over, inside, remove, write_atomically, write_text_atomically
from interbasis.base.messages import logger
from interbasis.base.tensor_file import Entry, tensor_digest, write_tensors
from interbasis.base.version import VERSION

FOLDER = ".resume"
MIN_SECONDS_BETWEEN_SAVES = 1.0
"""Overridden by INTERBASIS_SAVE_EVERY."""
SECONDS_PER_SECOND_OF_SAVING = 20.0
"""Seconds of work, at least, per second of saving."""
UNREADABLE = (OSError, ValueError, TypeError)
"""Errors of files that hold something else."""
UNKNOWN_TOTAL = 2**62
"""Steps of a pass that ends when it has found what it looks for."""

State = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors, and plain values that JSON can hold."""


class Checkpoint:
    """The state of one pass: what is in it, and how many samples (or other steps) those are."""

    def __init__(self, path: Path | None = None, total: int = 0, prepare: Callable[[], None] = lambda: None):
        self.done = 0
        """Steps that are in the state already."""
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}
        self._path, self._total, self._prepare = path, total, prepare
        self._saved, self._cost = time.monotonic(), 0.0
        if path is not None and path.is_file():
            self._read(path)

    @property
    def complete(self) -> bool:
        return 0 < self._total <= self.done

    def save(self, done: int, state: Callable[[], State]) -> None:
        """Note that ``done`` steps are in ``state()``, which is called and written when that is due.

        It is due after the last step, and when enough time has passed since the last write.
        """
        if self._path is None:
            return
        begun = time.monotonic()
        interval = float(os.environ.get("INTERBASIS_SAVE_EVERY", MIN_SECONDS_BETWEEN_SAVES))
        interval = max(interval, self._cost * SECONDS_PER_SECOND_OF_SAVING) if interval else 0
        if done < self._total and begun - self._saved < interval:
            return
        tensors, values = state()
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        texts = str(done), json.dumps(values)
        metadata = {"done": texts[0], "values": texts[1], "sha256": tensor_digest(tensors, *texts)}
        entries = [Entry.from_tensor(name, tensor) for name, tensor in tensors.items()]
        self._prepare()
        write_atomically(self._path, lambda temporary: write_tensors(temporary, entries, metadata))
        self._saved = time.monotonic()
        self._cost = self._saved - begun

    def remember(self, name: str, make: Callable[[], State]) -> State:
        """Return the result that is stored under a name, or make it, which is a step."""
        if name not in self.values:
            tensors, self.values[name] = make()
            self.tensors |= {f"{name}/{key}": tensor for key, tensor in tensors.items()}
            self.save(len(self.values), lambda: (self.tensors, self.values))
        parts = ((key.partition("/"), tensor) for key, tensor in self.tensors.items())
        return {key: tensor for (owner, _, key), tensor in parts if owner == name}, self.values[name]

    def _read(self, path: Path) -> None:
        errors = (*UNREADABLE, SafetensorError, KeyError)
        with Explained(
            f"{path} is not readable as unfinished work",
            *errors,
            remedy=f"delete {path.parent} to start again",
        ):
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
                # a copy, for the sake of where it lies: see the head of this file
                self.tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            if tensor_digest(self.tensors, metadata["done"], metadata["values"]) != metadata.get("sha256"):
                raise ValueError("its SHA-256 is not the one it was written with")
            self.done, self.values = int(metadata["done"]), json.loads(metadata["values"])


class Checkpoints:
    """The unfinished work of one task on one run, RUN/.resume/TASK; nothing is stored where the run is None.

    ``settings`` is everything that decides the result, as plain values. Work that was begun with others is
    refused with what changed, or thrown away with ``restart``. Nothing is written before there is a state.
    """

    def __init__(
        self,
        run: str | Path | None,
        task: str,
        settings: dict[str, Any] | None = None,
        *,
        restart: bool = False,
    ):
        self._run, self._part = Path(run or "."), ""
        self.folder = None if run is None else inside(self._run, f"{FOLDER}/{task}")
        self._settings = json.loads(json.dumps(settings or {}))
        self._task = task
        self._due_notices: list[str] = []
        """The notice that work resumes, until the user is told; parts of the task share it."""
        if not self.unfinished:
            return
        changed = first_change(self._begun_with(), self._settings)
        if changed and not restart:
            name, before, now = changed
            raise InterbasisError(
                f"{run} holds an unfinished {task} that was begun with {name} = {before}, not {now}; use the "
                f"old value to resume, or delete {self.folder} to start again"
            )
        if changed:
            self.finish()
        else:
            self._due_notices.append(task)

    @property
    def unfinished(self) -> bool:
        """Whether there is work to resume."""
        return self.folder is not None and (self.folder / "settings.json").is_file()

    def begin(self) -> None:
        """Make the folder now, before several processes store their states in it."""
        if self.folder is not None:
            self._prepare()

    def checkpoint(self, name: str, total: int = 1, called: str | None = None) -> Checkpoint:
        """The state of a pass of ``total`` steps: as it was saved, or empty.

        The first one that is incomplete is where unfinished work resumes; the user is told, and ``called`` is
        its name there.
        """
        path = self.path(name)
        checkpoint = Checkpoint() if path is None else Checkpoint(path, total, self._prepare)
        if not checkpoint.complete and self._due_notices:
            self._due_notices.clear()
            called, done = called or f"{self._part}{name}".replace(".", " "), checkpoint.done
            steps = f", {done:,} steps" * (done > 0)
            count = f", {done:,} of {total:,}" if 1 < total < UNKNOWN_TOTAL else steps
            logger.info(f"resuming {self._task}: {called}{count}")
        return checkpoint

    def path(self, name: str) -> Path | None:
        """The file of a state."""
        return None if self.folder is None else inside(self.folder, f"{self._part}{name}.safetensors")

    def within(self, part: str) -> "Checkpoints":
        """The states of a part of the task, which has passes of the same names as others."""
        inner = copy(self)
        inner._part = f"{self._part}{part}."
        return inner

    def forget(self) -> None:
        """Throw the states of a part away, once there is a state of its result."""
        assert self._part
        for file in () if self.folder is None else self.folder.glob(f"{glob.escape(self._part)}*"):
            remove(file)

    def remember(self, name: str, make: Callable[[], State], called: str | None = None) -> State:
        """Return the stored result of work that is one step, or make and store it."""
        checkpoint = self.checkpoint(name, called=called)
        if checkpoint.complete:
            return checkpoint.tensors, checkpoint.values
        state = make()
        checkpoint.save(1, lambda: state)
        return state

    def finish(self, *results: str, keeps_run: bool = True) -> None:
        """Throw the state away, once the result is written, and what kills left of writing ``results``.

        Without a result, an empty folder of the run need not stay.
        """
        if self.folder is None:
            return
        for name in results:
            clear_left_over(self._run, f"{name}.json", f"{name}.safetensors")
        # the settings go last: without them the rest would be taken for a beginning of anything
        for file in sorted(self.folder.glob("*"), key=lambda path: path.name == "settings.json"):
            remove(file)
        shutil.rmtree(self.folder, ignore_errors=True)
        for parent in (self.folder.parent, self._run / FOLDER, *(() if keeps_run else (self._run,))):
            with suppress(OSError):  # it holds other unfinished work, or is gone
                parent.rmdir()

    def _prepare(self) -> None:
        assert self.folder is not None
        if self.unfinished:
            return
        with Explained(
            f"could not keep unfinished work in {self.folder}", OSError,
            remedy="choose a folder that can be written to",
        ):  # fmt: skip
            self.folder.mkdir(parents=True, exist_ok=True)
            for left_over in self.folder.iterdir():  # without settings they belong to nothing
                remove(left_over)
        write_text_atomically(self.folder / "settings.json", json.dumps(self._settings, indent=1) + "\n")

    def _begun_with(self) -> dict[str, Any]:
        assert self.folder is not None
        folder, remedy = self.folder, "delete it to start again"
        with Explained(f"{folder} does not hold readable unfinished work", *UNREADABLE, remedy=remedy):
            return dict(json.loads(inside(self.folder, "settings.json").read_text(encoding="utf-8")))


NO_CHECKPOINTS = Checkpoints(None, "")
"""Keeps nothing: for work that is not to be resumed."""


def unfinished_tasks(run: Path, task: str) -> list[str]:
    """The folders of a task's unfinished work in RUN/.resume: TASK, or TASK.N/RANK of each of N processes."""
    folders = [run / FOLDER / task, *(run / FOLDER).glob(f"{task}.*/*")]
    return [
        folder.relative_to(run / FOLDER).as_posix()
        for folder in folders
        if folder.is_dir() and not any(path.is_symlink() for path in (folder, folder.parent, run / FOLDER))
    ]


def environment() -> dict[str, Any]:
    """Return what decides the last bits of a result beside its settings."""
    return {"threads": torch.get_num_threads(), **versions()}


def versions() -> dict[str, str]:
    """Return the versions of the software that a result was made with."""
    return {"interbasis": VERSION, "torch": torch.__version__, "python": platform.python_version()}


def first_change(
    before: Mapping[str, object], now: Mapping[str, object]
) -> tuple[str, object, object] | None:
    """Return the first setting that differs: its name, the value before, the value now."""
    for name in [*now, *(name for name in before if name not in now)]:
        if before.get(name) != now.get(name):
            return name, before.get(name), now.get(name)
    return None
