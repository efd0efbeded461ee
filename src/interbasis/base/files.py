"""Writing so that a reader sees the old file or the new one, never half of either."""

import glob
import hashlib
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from safetensors import SafetensorError

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.messages import logger


def is_running(process: int) -> bool:
    """Whether a process of this machine, by its id, has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


@cache
def host() -> str:
    """The name of this machine, in ASCII."""
    return platform.node().encode("ascii", "replace").decode()[:100] or "unknown"


@cache
def boot_id() -> str:
    """A name of the running kernel, which changes when the machine is started again."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return host()


ABANDONED = re.compile(r"\..+\.(?P<host>[^/]+)-(?P<process>\d+)-\w+\.tmp")
"""Names of temporary folders: of which file, on which machine, by which process."""
SECONDS_OF_A_WRITE = 86_400.0
"""After which a temporary folder of another machine has been left by a process that ended."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file in a temporary folder beside ``path``, flush it and rename it into place.

    A folder, because safetensors makes temporary files of its own beside the one it is told to write: killed
    at any moment, what is left has a name that says what it is, and the next write beside it removes it.
    """
    with Explained(
        f"could not write {path}", OSError, SafetensorError,  # safetensors has its own for a full disk
        remedy="what was there before is untouched; free some space or choose another folder",
    ):  # fmt: skip
        _clear_abandoned(path.parent)
        prefix = f".{path.name}.{host()}-{os.getpid()}-"
        place = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=path.parent))
        _places.add(place)
        try:
            temporary = place / path.name
            temporary.touch()
            mode = temporary.stat().st_mode  # the umask's; safetensors would make a file of its own
            write(temporary)
            temporary.chmod(stat.S_IMODE(mode))
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            logger.debug(f"wrote {path} ({path.stat().st_size:,} bytes)")
        finally:
            remove(place)
            _places.discard(place)


_places: set[Path] = set()
"""Temporary folders in which this process is writing."""


def _clear_abandoned(folder: Path) -> None:
    """Remove temporary folders of processes of this machine that have ended, and all of an earlier day."""
    for path in folder.glob(".*.tmp"):
        name = ABANDONED.fullmatch(path.name)
        if name is None or path in _places or path.is_symlink() or not path.is_dir():
            continue
        process = int(name["process"])
        ended = name["host"] == host() and (process == os.getpid() or not is_running(process))
        with suppress(OSError):
            if ended or time.time() - path.stat().st_mtime > SECONDS_OF_A_WRITE:
                remove(path)


def inside(run: Path, name: str) -> Path:
    """The path of a file or folder in a run, reached without a symbolic link: a run may be a stranger's.

    The run's folder itself may be a link; the user named it.

    Raises:
        InterbasisError: The path leads out of the run, or a part of it below the run's folder is a link.
    """
    parts = Path(name).parts
    if ".." in parts or Path(name).is_absolute():
        raise InterbasisError(
            f"expected the name of a file in {run}, received {name!r}, which leads out of it"
        )
    path = run
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise InterbasisError(
                f"{path} is a link, and links in a run are not followed; put the file or folder itself "
                "there, or delete the link"
            )
    return path


def remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link, but not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def clear_left_over(folder: Path, *names: str) -> None:
    """Remove what processes that were killed while writing files of these names have left beside them."""
    for name in names:
        for left_over in folder.glob(f".{glob.escape(name)}.*.tmp"):
            remove(left_over)


def existing_parent(path: Path) -> Path:
    """Return the path itself, or the nearest folder above it that exists."""
    path = path.absolute()
    return next((place for place in (path, *path.parents) if place.exists()), path)


def check_writable(folder: Path) -> None:
    """A folder can be made, or written to where it is there, as far as that can be known without trying."""
    place = existing_parent(folder)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        reason = "is a file" if place.is_file() else "cannot be written to"
        raise InterbasisError(f"could not write to {folder}, since {place} {reason}; choose another folder")


def make_folder(folder: Path) -> None:
    """A folder and those above it, where they are not there yet."""
    with Explained(f"could not make the folder {folder}", OSError, remedy="choose another one"):
        folder.mkdir(parents=True, exist_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
