"""Data sets of the Hugging Face Hub as parquet files: `hf:DATASET`, or `hf:FOLDER` for downloaded ones.

Files are downloaded, or, with stream=yes, read in ranges of bytes at one commit. It is looked up once,
when the data are opened, and every later read names it: data that change on the Hub do not change under a
computation. A read that fails is tried again a few times.
"""

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

from interbasis.base.connection import hub_is_out_of_reach
from interbasis.base.errors import InterbasisError
from interbasis.data.download import TIMEOUT
from interbasis.data.samples import Split

SPLIT_WORDS = {"train": ("train",), "test": ("test", "validation", "valid")}
"""Words in the names of the files of each split."""
ATTEMPTS = 4
"""Attempts at a read before it counts as failed."""
SECONDS_TO_SECOND_ATTEMPT = 0.5
"""Doubled for each attempt that follows."""
REFUSALS = {
    401: "there is none that may be read without signing in",
    403: "access is denied",
    404: "there is none on the Hub",
}
"""Answers of the Hub by HTTP status."""

File = TypeVar("File", bound=PurePath)
T = TypeVar("T")


def parquet_files(name: str, split: Split, revision: str | None = None) -> tuple[list[Path], bool]:
    """Files of a split, in order, and whether they are the whole of it (not to be split once more)."""
    folder = Path(name) if Path(name).is_dir() else _downloaded(name, revision)
    files = sorted(folder.rglob("*.parquet"))
    if not files:
        raise InterbasisError(f"hf:{name} has no parquet files; expected at least one")
    return split_files(f"hf:{name}", files, split)


def split_files(name: str, files: list[File], split: Split) -> tuple[list[File], bool]:
    """Files whose names say the split, and whether they are the whole of it; all, if no name says any."""
    words = sum(SPLIT_WORDS.values(), ())
    named = {word: [file for file in files if word in file.name.lower()] for word in words}
    for word in SPLIT_WORDS[split]:
        if named[word]:
            return named[word], True
    if any(named[word] for word in SPLIT_WORDS["test"]):
        raise InterbasisError(f"{name} has no files for the {split} split")
    return files, False


def _hub_package(name: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InterbasisError(
            f"hf:{name} needs the huggingface_hub package; install it with: pip install 'interbasis[hf]'"
        ) from error
    return huggingface_hub


def _downloaded(name: str, revision: str | None) -> Path:
    hub = _hub_package(name)
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    options = {"revision": revision, "allow_patterns": "*.parquet", "local_files_only": hub_is_out_of_reach()}
    try:
        return Path(hub.snapshot_download(name, repo_type="dataset", **options))
    except (HfHubHTTPError, HFValidationError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InterbasisError(
            f"could not fetch the data set {name} ({reason}); without a network, put its parquet files into "
            "a folder and name it as hf:FOLDER"
        ) from error


@dataclass(frozen=True)
class HubFile:
    """File of a data set."""

    path: PurePosixPath
    size: int
    """Bytes."""
    content: str
    """Hash of its content, as the Hub knows it."""


@dataclass(frozen=True)
class PinnedDataset:
    """Parquet files of a data set at one commit, in order."""

    name: str
    commit: str
    files: tuple[HubFile, ...]

    def file(self, path: PurePosixPath) -> HubFile:
        """File by its path in the repository."""
        return next(file for file in self.files if file.path == path)

    def read(self, file: HubFile, first: int, last: int) -> bytes:
        """Bytes first … last − 1 of a file.

        Raises:
            InterbasisError: The Hub did not give them, tried several times.
        """
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session

        if first >= last:
            return b""
        address = hf_hub_url(self.name, str(file.path), repo_type="dataset", revision=self.commit)
        headers = build_hf_headers() | {"Range": f"bytes={first}-{last - 1}"}

        def fetch() -> bytes:
            answer = get_session().get(address, headers=headers, timeout=TIMEOUT)
            if answer.status_code not in (200, 206):
                raise _StatusError(answer.status_code)
            content = bytes(answer.content)
            if answer.status_code == 200:  # a server without ranges sends all of it
                content = content[first:last]
            if len(content) != last - first:
                raise ConnectionError(f"{len(content)} of {last - first} bytes arrived")
            return content

        return _attempted(fetch, f"could not read {file.path} of the data set {self.name}")


class RangedFile(io.RawIOBase):
    """File of a data set that is read in ranges, a request each."""

    def __init__(self, dataset: PinnedDataset, file: HubFile):
        super().__init__()
        self._dataset, self._file, self._place = dataset, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        last = self._file.size if size < 0 else min(self._place + size, self._file.size)
        content = self._dataset.read(self._file, self._place, last)
        self._place += len(content)
        return content


class _StatusError(Exception):
    """The Hub's answer has an HTTP status that is an error."""

    def __init__(self, status: int):
        super().__init__(f"HTTP status {status}")
        self.status = status


def pinned(name: str, revision: str | None = None) -> PinnedDataset:
    """Data set at the commit that a revision, by default the newest one, is now.

    Raises:
        InterbasisError: There is no such data set or revision, it has no parquet files, or the Hub does not
            answer.
    """
    if Path(name).is_dir():
        raise InterbasisError(f"hf:{name} is a folder, which is read as it is; leave stream=yes out")
    hub = _hub_package(name)
    problem = f"could not open the data set {name}" + (f" at revision {revision}" if revision else "")
    if hub_is_out_of_reach():
        from huggingface_hub import constants

        raise InterbasisError(
            f"{problem} ({constants.ENDPOINT} does not answer, or HF_HUB_OFFLINE is set); stream=yes "
            "requires the Hub, without it name a folder with parquet files as hf:FOLDER"
        )
    api = hub.HfApi()
    commit = _attempted(lambda: str(api.dataset_info(name, revision=revision, timeout=TIMEOUT).sha), problem)
    tree = _attempted(
        lambda: list(api.list_repo_tree(name, repo_type="dataset", revision=commit, recursive=True)), problem
    )
    files = [
        HubFile(PurePosixPath(entry.path), entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)
        for entry in tree
        if entry.path.endswith(".parquet")
    ]
    if not files:
        raise InterbasisError(f"hf:{name} has no parquet files; expected at least one")
    return PinnedDataset(name, commit, tuple(sorted(files, key=lambda file: file.path)))


def _attempted(work: Callable[[], T], problem: str) -> T:
    """Result of the work; network errors are waited out, and what the Hub refuses is an error at once."""
    for attempt in range(ATTEMPTS):
        try:
            return work()
        except Exception as error:  # of requests, httpx or httpx2, by the version of huggingface_hub
            answer = getattr(error, "response", None)
            status = getattr(error, "status", None) or getattr(answer, "status_code", None)
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if _is_final(error, status):
                raise InterbasisError(
                    f"{problem} ({REFUSALS.get(status or 0, reason)}); expected a data set of the Hub as "
                    "ORGANISATION/NAME and, with revision=…, a branch or commit of it"
                ) from error
            if attempt == ATTEMPTS - 1:
                raise InterbasisError(
                    f"{problem} ({ATTEMPTS} attempts, the last one: {reason}); run the same command again "
                    "to resume, or leave stream=yes out to download the files first"
                ) from error
        time.sleep(SECONDS_TO_SECOND_ATTEMPT * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _is_final(error: Exception, status: int | None) -> bool:
    """Whether another attempt would end in the same way: the Hub said no, or the name cannot be one."""
    if status is not None:
        return 400 <= status < 500 and status not in (408, 429)
    from huggingface_hub.errors import HFValidationError

    return isinstance(error, HFValidationError)
