"""Data sets of the Hugging Face Hub as parquet files: `hf:DATASET`, or `hf:FOLDER` for downloaded ones.

Files are downloaded, or, with stream=yes, read in ranges of bytes at one commit. It is looked up once,
when the data are opened, and every later read names it: data that change on the Hub do not change under a
computation. A read that fails is tried again a few times.

A parquet file ends in a footer that says where every row group and column lies and how many values it holds.
Footers alone tell how many tokens a data set has, so a process asks for the one column of the row groups that
its samples lie in, and for nothing else.
"""

import hashlib
import io
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

import numpy as np
from fsspec.spec import AbstractBufferedFile  # type: ignore[import-untyped]

from interbasis.base.connection import hub_is_out_of_reach
from interbasis.base.errors import Explained, InterbasisError, first_line
from interbasis.base.lazy import optional_import
from interbasis.data import tokens as token_files
from interbasis.data.download import TIMEOUT
from interbasis.data.samples import Split
from interbasis.data.tokens import COLUMNS, JoinedTokens, TokenPiece, TokenStream, find_column, parquet_module

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

MAX_CACHED_BYTES = 2**26
"""Bytes of tokens of row groups that a process keeps; larger data are read again in every pass."""
MAX_FOOTERS_TOGETHER = 8
"""Files whose footers are asked for at the same time."""
TAIL_BYTES = 8
"""Bytes at the end of a parquet file: the length of its footer, and PAR1."""

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
    return optional_import("huggingface_hub", f"hf:{name} needs the huggingface_hub package")


def _downloaded(name: str, revision: str | None) -> Path:
    hub = _hub_package(name)
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    options = {"revision": revision, "allow_patterns": "*.parquet", "local_files_only": hub_is_out_of_reach()}
    remedy = "without a network, put its parquet files into a folder and name it as hf:FOLDER"
    errors = HfHubHTTPError, HFValidationError, OSError, ValueError, RuntimeError
    with Explained(f"could not fetch the data set {name}", *errors, remedy=remedy):
        return Path(hub.snapshot_download(name, repo_type="dataset", **options))


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

    def read(self, file: HubFile, first: int, last: int) -> bytes:
        """Bytes first … last − 1 of a file.

        Raises:
            InterbasisError: The Hub did not give them, tried several times.
        """
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        if first >= last:
            return b""
        address = hf_hub_url(self.name, str(file.path), repo_type="dataset", revision=self.commit)
        headers = build_hf_headers() | {"Range": f"bytes={first}-{last - 1}"}

        def fetch() -> bytes:
            answer = get_session().get(address, headers=headers, timeout=TIMEOUT)
            hf_raise_for_status(answer)
            content = bytes(answer.content)
            if answer.status_code == 200:  # a server without ranges sends all of it
                content = content[first:last]
            if len(content) != last - first:
                raise ConnectionError(f"{len(content)} of {last - first} bytes arrived")
            return content

        return _attempted(fetch, f"could not read {file.path} of the data set {self.name}")


class RangedFile(AbstractBufferedFile):
    """File of a data set that is read in ranges, a request each."""

    def __init__(self, dataset: PinnedDataset, file: HubFile):
        super().__init__(None, str(file.path), size=file.size, cache_type="none")
        self._dataset, self._file = dataset, file

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._dataset.read(self._file, start, end)


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
    """Result of the work; network errors are waited out.

    Where the Hub refuses it, or a name cannot be one, another attempt would end in the same way.
    """
    for attempt in range(ATTEMPTS):
        try:
            return work()
        except Exception as error:  # of requests, httpx or httpx2, by the version of huggingface_hub
            status = getattr(getattr(error, "response", None), "status_code", 0)
            reason = first_line(error)
            refused = 400 <= status < 500 and status not in (408, 429)
            if refused or (not status and type(error).__name__ == "HFValidationError"):
                raise InterbasisError(
                    f"{problem} ({REFUSALS.get(status, reason)}); expected a data set of the Hub as "
                    "ORGANISATION/NAME and, with revision=…, a branch or commit of it"
                ) from error
            if attempt == ATTEMPTS - 1:
                raise InterbasisError(
                    f"{problem} ({ATTEMPTS} attempts, the last one: {reason}); run the same command again "
                    "to resume, or leave stream=yes out to download the files first"
                ) from error
        time.sleep(SECONDS_TO_SECOND_ATTEMPT * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, eq=False)
class Footer:
    """Footer of a file, which describes its row groups."""

    dataset: PinnedDataset
    file: HubFile
    metadata: Any

    @property
    def source(self) -> str:
        """File and data set, in words."""
        return f"{self.file.path} of the data set {self.dataset.name}"

    @property
    def columns(self) -> list[str]:
        """Names of all columns."""
        return list(self.metadata.schema.to_arrow_schema().names)

    def read(self, group: int, column: str) -> Any:
        """Column of a row group, a pyarrow array."""
        parquet, arrow_error = parquet_module(self.file.path)
        with Explained(f"could not read row group {group} of {self.source}", arrow_error):
            # one request for the column: without pre_buffer, ranges are not joined to larger ones
            ranged = RangedFile(self.dataset, self.file)
            with parquet.ParquetFile(ranged, metadata=self.metadata, pre_buffer=False) as file:
                return file.read_row_group(group, columns=[column], use_threads=False).column(0)


def read_footer(dataset: PinnedDataset, file: HubFile) -> Footer:
    """Read the footer of a file: two small reads."""
    parquet, arrow_error = parquet_module(file.path)
    tail = dataset.read(file, max(0, file.size - TAIL_BYTES), file.size)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or length > file.size - TAIL_BYTES:
        length = 0
    footer = dataset.read(file, file.size - TAIL_BYTES - length, file.size - TAIL_BYTES)
    problem = f"could not read {file.path} of the data set {dataset.name} as a parquet file"
    with Explained(problem, arrow_error, ValueError, OSError):
        return Footer(dataset, file, parquet.read_metadata(io.BytesIO(b"PAR1" + footer + tail)))


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Tokens of a row group."""

    footer: Footer
    number: int
    column: str
    length: int
    """Number of tokens, by the footer."""

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [tokens] and where the rows that hold some begin [rows]."""
        rows, source = self.footer.read(self.number, self.column), self.footer.source
        tokens, starts = token_files.concatenated_rows(rows, source, self.column)
        if len(tokens) != self.length:
            raise InterbasisError(
                f"row group {self.number} of {source} holds {len(tokens)} tokens, but its footer says "
                f"{self.length}; leave stream=yes out to download the files"
            )
        return tokens, starts

    def tokens(self, cache: "OrderedDict[RowGroup, np.ndarray]") -> np.ndarray:  # [tokens]
        """Tokens, read if they are not among those that were read last."""
        if self not in cache:
            cache[self] = self.read()[0]
        cache.move_to_end(self)
        while len(cache) > 1 and sum(part.nbytes for part in cache.values()) > MAX_CACHED_BYTES:
            cache.popitem(last=False)
        return cache[self]


def open_streamed(
    dataset: PinnedDataset,
    files: Sequence[HubFile],
    column: str | None,
    tokens: int | None,
    cut: float | None,
) -> TokenStream:
    """Open the tokens of a data set's files, one after the other; nothing but footers is read.

    Args:
        dataset: The data set at one commit.
        files: Those of its files that are read.
        column: The column of token lists; default: the first with a name that says so.
        tokens: How many are wanted; files beyond them are not looked at. None is all of them.
        cut: A share of the tokens near which the beginnings of documents, which are rows, must be known: the
            row group there is read. None where they do not matter.

    Raises:
        InterbasisError: A footer does not say how many tokens a row group holds.
    """
    groups: list[RowGroup] = []
    total, done, together = 0, 0, 1 if tokens else MAX_FOOTERS_TOGETHER
    with ThreadPoolExecutor(MAX_FOOTERS_TOGETHER) as pool:
        while done < len(files) and (tokens is None or total < tokens):
            batch = files[done : done + together]
            for footer in pool.map(lambda file: read_footer(dataset, file), batch):
                groups += _row_groups(footer, column)
            total = sum(group.length for group in groups)
            done, together = done + len(batch), min(2 * together, MAX_FOOTERS_TOGETHER)
    if not groups:
        raise InterbasisError(f"the data set {dataset.name} has no tokens")
    starts = None if cut is None else _starts_near(groups, total - int(total * cut))
    cache: OrderedDict[RowGroup, np.ndarray] = OrderedDict()
    pieces = [TokenPiece(group.length, partial(group.tokens, cache)) for group in groups]
    return TokenStream(JoinedTokens(pieces), starts)


def _row_groups(footer: Footer, column: str | None) -> Iterator[RowGroup]:
    """Row groups that hold tokens."""
    name = find_column(footer.source, footer.columns, column, COLUMNS)
    for number in range(footer.metadata.num_row_groups):
        length = token_files.token_count(footer.metadata.row_group(number), name)
        if length is None:
            raise InterbasisError(
                f"{footer.source} does not say how many tokens its row groups hold (statistics with null "
                "counts), which streaming requires; leave stream=yes out to download the files"
            )
        if length:
            yield RowGroup(footer, number, name, length)


def _starts_near(groups: Sequence[RowGroup], place: int) -> np.ndarray:
    """Beginnings of rows: of every row group, which begins with a row, and all of the one that holds a place.

    The first row that begins at a place or after it is among them, and so is the last row of all if there is
    none: what a split is decided by.
    """
    starts = np.cumsum([0, *(group.length for group in groups)])
    number = min(int(np.searchsorted(starts, place, side="right")) - 1, len(groups) - 1)
    if starts[number] == place:
        return starts[:-1]
    return np.union1d(starts[:-1], groups[number].read()[1] + starts[number])


def streamed_rows(
    dataset: PinnedDataset, files: Sequence[HubFile], column: str | None, names: Sequence[str]
) -> Iterator[object]:
    """Values of a column, row by row; row groups are read as they come.

    ``names`` serve where no column is named.
    """
    for file in files:
        footer = read_footer(dataset, file)
        name = find_column(footer.source, footer.columns, column, names)
        for number in range(footer.metadata.num_row_groups):
            yield from (row.as_py() for row in footer.read(number, name))


def streamed_identity(dataset: PinnedDataset, files: Sequence[HubFile]) -> str:
    """SHA-256 over the repository, the commit, and the names, sizes and hashes of files; no data are read."""
    digest = hashlib.sha256(f"{dataset.name} {dataset.commit}\n".encode())
    for file in files:
        digest.update(f"{file.path} {file.size} {file.content}\n".encode())
    return digest.hexdigest()
