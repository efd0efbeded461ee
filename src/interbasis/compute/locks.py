"""Locks on a run: which commands may work in its folder at the same time.

A lock is a file in the run, `RUN/.NAME.lock`, with an advisory lock of the system on it (`flock`), which the
kernel releases however a process ends. The file names its holders, a line of JSON each. Holders of one group
share a lock, and every other group is refused: processes of one torchrun, the shards of one build, the stages
that read one graph. A process on its own is a group of its own.

    lock      build and merge    a shard of a build          every other stage that stores a result
    graph     alone              with shards of its build    with other stages
    STAGE     -                  alone, by its number        alone, except traces

Some file systems confine `flock` to one machine. A holder therefore touches its file every few seconds: a
record of another machine whose file is touched no more was left by a process that is gone.
"""

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import Annotated
from uuid import uuid4

from pydantic import Field, ValidationError

from interbasis.base.errors import InterbasisError
from interbasis.base.files import boot_id, host, is_running, make_folder
from interbasis.base.messages import logger
from interbasis.base.records import Record
from interbasis.compute.checkpoints import State
from interbasis.compute.team import ALONE, ConnectedTeam, Team

LOCK = re.compile(r"\.[\w.-]+\.lock")
"""Names of lock files."""
GRAPH = "graph"
READERS = "readers of the graph"
SECONDS_TO_SETTLE = 2.0
"""Longest time that a process locks a file only to write its record."""
SECONDS_BETWEEN_BEATS = 10.0
SECONDS_WITHOUT_BEAT = 35.0
"""After which the holder of a lock on another machine is taken to be gone."""
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of file systems without locks."""


Text = Annotated[str, Field(pattern=r"^[ -~]{1,200}$")]
"""Text that is safe on a terminal: a run may come from a stranger."""


class Holder(Record):
    """A process that holds a lock."""

    lock: Text
    """Identifies what it holds."""
    group: Text
    task: Text
    """Its command."""
    process: int
    host: Text
    boot: Text
    """Identifies the running kernel, so that a record from before a reboot is recognised."""
    since: Text
    released: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is a process of another machine, of which this one does not know if it runs."""
        return self.boot != boot_id() and self.host != host()

    @property
    def may_run(self) -> bool:
        return self.is_elsewhere or (self.boot == boot_id() and is_running(self.process))

    def __str__(self) -> str:
        return f"{self.task} (process {self.process} on {self.host}, since {self.since})"


def building(
    run: Path | None, task: str = "build", team: Team = ALONE, group: str = ""
) -> AbstractContextManager[None]:
    """Hold a run's graph for changing it: no other command may work on the run, except those of ``group``.

    Where the run is None, nothing is held.

    Raises:
        InterbasisError: Another command works on the run.
    """
    if run is None:
        return nullcontext()
    return _held(_Lock(run, GRAPH, task, group), team)


@contextmanager
def working(run: Path | None, stage: str, team: Team = ALONE, *, alone: bool = True) -> Iterator[None]:
    """Hold a run's graph for reading, and the stage itself: no build and no second command of this stage.

    Args:
        run: Folder of the run; None holds nothing.
        stage: Name of the stage.
        team: The processes of this command.
        alone: Whether two commands of the stage exclude each other.

    Raises:
        InterbasisError: Another command works on the run.
    """
    with ExitStack() as stack:
        if run is not None:
            stack.enter_context(_held(_Lock(run, GRAPH, stage, READERS), team))
            if alone:
                stack.enter_context(_held(_Lock(run, stage, stage), team))
        yield


def only_task(folder: Path, task: str) -> AbstractContextManager[None]:
    """Hold a task in a folder, whatever else is done there.

    Raises:
        InterbasisError: Another command does this task in the folder.
    """
    return _held(_Lock(folder, task.replace(" ", "-"), task), ALONE)


class _Lock:
    """A lock on a run, held or not."""

    def __init__(self, run: Path, name: str, task: str, group: str = ""):
        self.run, self.path, self.task = run, run.resolve() / f".{name}.lock", task
        self.alone = not group
        """Whether its group is this command."""
        self.group = group or uuid4().hex
        self._holder: Holder | None = None
        self._descriptor: int | None = None
        self._new_folder = False
        self._released = Event()

    def acquire(self) -> None:
        """Hold the lock, or raise; a folder without write permission, or without locks, is not locked."""
        self._new_folder = not self.run.exists()
        make_folder(self.run)
        try:
            self._acquire()
        except OSError as error:
            self._close()
            if error.errno in UNSUPPORTED:
                with suppress(OSError):
                    self.path.unlink()
                logger.warning(
                    f"the file system of {self.run} has no locks ({error.strerror}); make sure that no "
                    "other command works on this folder at the same time"
                )
            elif os.access(self.run, os.W_OK):  # else nothing can be stored there
                raise InterbasisError(
                    f"could not lock {self.path} ({error.strerror}); delete it if nothing works on the "
                    "folder, or choose another folder"
                ) from error
        except BaseException:
            self._close()
            self._remove_new_folder()
            raise

    def _acquire(self) -> None:
        deadline = time.monotonic() + SECONDS_TO_SETTLE
        while True:
            self._descriptor, writable = _open_file(self.path)
            if self._take(self._descriptor, writable):
                break
            holders = _holders(self._descriptor)
            self._close()
            if time.monotonic() > deadline:
                raise self._refusal(holders)
            time.sleep(0.02)
        Thread(target=self._beat, name="interbasis-lock", daemon=True).start()

    def _take(self, descriptor: int, writable: bool) -> bool:
        """Whether the lock is held now; if not, it is to be tried again."""
        nobody = _flock(descriptor, fcntl.LOCK_EX)
        if not nobody and not _flock(descriptor, fcntl.LOCK_SH):
            return False
        if not self._is_in_place(descriptor):
            return False
        holders = _holders(descriptor)
        if nobody and (not writable or (holders and holders[0].group != self.group)):
            if any(holder.is_elsewhere for holder in holders) and self._is_touched(holders):
                raise self._refusal(holders)
            self.path.unlink(missing_ok=True)  # left by processes that are gone
            return False
        if not nobody and not holders:
            return False
        if not nobody and holders[0].group != self.group:
            raise self._refusal(holders)
        if writable:
            self._holder = Holder(
                lock=uuid4().hex, group=self.group, task=self.task.encode("ascii", "replace").decode()[:200],
                process=os.getpid(), host=host(), boot=boot_id(),
                since=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            )  # fmt: skip
            _append(descriptor, self._holder)
        if nobody and not _flock(descriptor, fcntl.LOCK_SH):
            return False
        # another group may have come in between, for the system does not change the kind of a lock at once
        holders = _holders(descriptor)
        return self._is_in_place(descriptor) and bool(holders) and holders[0].group == self.group

    def release(self) -> None:
        """Let go of the lock."""
        self._released.set()
        if self._descriptor is not None and self._holder is not None:
            with suppress(OSError):
                _append(self._descriptor, self._holder.model_copy(update={"released": True}))
        self._close()
        self._remove_new_folder()

    def _close(self) -> None:
        """Close the file; whoever closes it last removes it, be it a holder or one that was refused."""
        if self._descriptor is None:
            return
        with suppress(OSError):
            nobody = _flock(self._descriptor, fcntl.LOCK_EX) and self._is_in_place(self._descriptor)
            if nobody and not any(holder.is_elsewhere for holder in _holders(self._descriptor)):
                self.path.unlink()
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # also of copies in processes forked from this one
        os.close(self._descriptor)
        self._descriptor = None

    def _remove_new_folder(self) -> None:
        if self._new_folder:
            with suppress(OSError):  # something was written there
                self.run.rmdir()

    def _is_in_place(self, descriptor: int) -> bool:
        """Whether the open file is still the one of the path, and was not removed by its last holder."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _refusal(self, holders: list[Holder]) -> InterbasisError:
        running = [holder for holder in holders if holder.may_run] or holders
        by = " and ".join(dict.fromkeys(map(str, running))) or "another command"
        return InterbasisError(
            f"{self.run} is in use by {by}; wait until that has ended, or use another folder"
        )

    def _is_touched(self, holders: list[Holder]) -> bool:
        """Whether a process on another machine still holds the lock."""
        hosts = ", ".join(dict.fromkeys(holder.host for holder in holders))
        logger.info(
            f"waiting up to {SECONDS_WITHOUT_BEAT:.0f} s to see whether {hosts} still works on {self.run}"
        )
        first, end = _last_change(self.path), time.monotonic() + SECONDS_WITHOUT_BEAT
        while time.monotonic() < end:
            time.sleep(SECONDS_WITHOUT_BEAT / 50)
            if _last_change(self.path) not in (first, None):
                return True
        return False

    def _beat(self) -> None:
        while not self._released.wait(SECONDS_BETWEEN_BEATS):
            with suppress(OSError, TypeError):  # released just now
                os.utime(self._descriptor)  # type: ignore[arg-type]


_locks: dict[tuple[Path, int], _Lock] = {}
"""The locks of this process, by their files and threads."""


@contextmanager
def _held(lock: _Lock, team: Team) -> Iterator[None]:
    """Hold a lock, in all processes of a team; one that this thread holds already is held on."""
    key = lock.path, get_ident()
    outer = _locks.get(key)
    if outer is not None and (outer.alone or outer.group == lock.group):
        yield
        return
    if isinstance(team, ConnectedTeam):
        _acquire_together(lock, team)
    else:
        lock.acquire()
    try:
        _locks[key] = lock
        yield
    finally:
        del _locks[key]
        if outer is not None:  # of another group, on a file system without locks
            _locks[key] = outer
        lock.release()


def _acquire_together(lock: _Lock, team: Team) -> None:
    """Acquire the lock in the first process of a team; the others receive its answer and join its group."""

    def acquire() -> State:
        try:
            lock.acquire()
        except InterbasisError as error:
            return {}, {"refusal": str(error)}
        return {}, {"group": lock.group}

    _, answer = team.once("lock", acquire)
    if "refusal" in answer:
        raise InterbasisError(answer["refusal"])
    if not team.is_first:
        lock.group = answer["group"]
        lock.acquire()


def _open_file(path: Path) -> tuple[int, bool]:
    """Open a lock's file; return the descriptor and whether it is writable: it may be another user's."""
    flags = os.O_CREAT | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o666), True
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW), False


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holders(descriptor: int) -> list[Holder]:
    """All processes that have joined and have not released the lock; some of them may have been killed."""
    holders: dict[str, Holder] = {}
    for line in os.pread(descriptor, 2**20, 0).splitlines():
        with suppress(ValidationError):
            holder = Holder.model_validate_json(line)
            holders[holder.lock] = holder
    return [holder for holder in holders.values() if not holder.released]


def _append(descriptor: int, holder: Holder) -> None:
    os.write(descriptor, f"{holder.to_json()}\n".encode())


def _last_change(path: Path) -> int | None:
    """Time of the last change in nanoseconds; the file is opened, so that network file systems ask again."""
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None
