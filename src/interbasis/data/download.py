"""Fetching public data sets: checksum checked, resumed where it broke off, kept under ~/.cache/interbasis."""

import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.files import file_sha256
from interbasis.base.progress import progress_bar

BYTES_PER_BLOCK = 2**18
"""Bytes that are read at a time."""
TIMEOUT = 30
"""Seconds without a byte after which an address counts as out of reach."""


@dataclass(frozen=True)
class Remote:
    """Published file, with the checksum that it must have."""

    name: str
    homes: tuple[str, ...]
    """Addresses of the folders that hold it, the first one preferred."""
    sha256: str
    size: int


def cache_folder() -> Path:
    """~/.cache/interbasis, or the folder that INTERBASIS_CACHE or XDG_CACHE_HOME name."""
    if folder := os.environ.get("INTERBASIS_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "interbasis"


def fetch(remote: Remote) -> Path:
    """Path of a file on this machine; it is downloaded where it is not there yet."""
    place = cache_folder() / remote.name
    if place.is_file():
        if place.stat().st_size == remote.size:
            return place  # its checksum was looked at when it came
        raise InterbasisError(
            f"{place} has {place.stat().st_size} bytes, expected {remote.size}; delete it to download it "
            "again"
        )
    partial = place.with_name(place.name + ".part")
    problem = ""
    with Explained(f"could not write {partial}", OSError, remedy="set INTERBASIS_CACHE to another folder"):
        place.parent.mkdir(parents=True, exist_ok=True)
        for home in remote.homes:
            try:
                _download(home + remote.name, partial, remote)
                problem = ""
                break
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                problem = problem or str(getattr(error, "reason", error))
    if problem:
        raise InterbasisError(
            f"could not fetch {remote.name} from {remote.homes[0]} ({problem}); download it on "
            f"a machine with a network connection and put it at {place}, or name its path"
        )
    if file_sha256(partial) != remote.sha256:
        partial.unlink()
        raise InterbasisError(
            f"{remote.name} from {remote.homes[0]} does not have the SHA-256 {remote.sha256}: "
            "it was discarded; try again later"
        )
    partial.replace(place)
    return place


def _download(address: str, partial: Path, remote: Remote) -> None:
    """Continue where the partial file ends."""
    size = partial.stat().st_size if partial.exists() else 0
    if size >= remote.size:
        return
    request = urllib.request.Request(address, headers={"Range": f"bytes={size}-"} if size else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, progress_bar() as advance:
        continues = answer.status == 206
        size = size if continues else 0
        with open(partial, "ab" if continues else "wb") as file:
            while block := answer.read(BYTES_PER_BLOCK):
                file.write(block)
                size += len(block)
                advance(f"fetching {remote.name}", size, remote.size)
    if size < remote.size:
        raise ConnectionError(f"the connection broke off after {size} of {remote.size} bytes")
