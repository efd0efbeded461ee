"""Data sets of the Hugging Face Hub as parquet files: `hf:DATASET`, or `hf:FOLDER` for downloaded ones.

Files are downloaded, or, with stream=yes, read in ranges of bytes at one commit by the file system of
huggingface_hub, which tries again where a connection breaks. The commit is looked up once, when the data are
opened, and every later read names it: data that change on the Hub do not change under a computation.

A parquet file ends in a footer that says where every row group and column lies and how many values it holds.
Footers alone tell how many tokens a data set has, so a process asks for the one column of the row groups that
its samples lie in, and for nothing else.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

import numpy as np

from interbasis.base.connection import hub_is_out_of_reach
from interbasis.base.errors import Explained, InterbasisError, first_line
from interbasis.base.lazy import optional_import
from interbasis.data import tokens as token_files
from interbasis.data.download import TIMEOUT
from interbasis.data.samples import Split
from interbasis.data.tokens import COLUMNS, JoinedTokens, TokenPiece, TokenStream, find_column, parquet_module

SPLIT_WORDS = {"train": ("train",), "test": ("test", "validation", "valid")}
"""Words in the names of the files of each split."""
REFUSALS = {
    401: "there is none that may be read without signing in",
    403: "access is denied",
    404: "there is none on the Hub",
}
"""Answers of the Hub by HTTP status."""

RESUME = "run the same command again to resume, or leave stream=yes out to download the files first"

MAX_CACHED_BYTES = 2**26
"""Bytes of tokens of row groups that a process keeps; larger data are read again in every pass."""
MAX_FOOTERS_TOGETHER = 8
"""Files whose footers are asked for at the same time."""

File = TypeVar("File", bound=PurePath)


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

    def open(self, file: HubFile) -> Any:
        """Open a file; every read is a request for its bytes and no others."""
        name = f"datasets/{self.name}@{self.commit}/{file.path}"
        return _file_system().open(name, cache_type="none", size=file.size)


def _file_system() -> Any:
    from huggingface_hub import HfFileSystem, constants

    return HfFileSystem(endpoint=constants.ENDPOINT)


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
    try:
        commit = str(hub.HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT).sha)
        entries = _file_system().find(f"datasets/{name}@{commit}", detail=True)
    except Exception as error:  # of requests, httpx or httpx2, by the version of huggingface_hub
        status = getattr(getattr(error, "response", None), "status_code", 0)
        raise InterbasisError(
            f"{problem} ({REFUSALS.get(status) or first_line(error)}); expected a data set of the Hub as "
            "ORGANISATION/NAME and, with revision=…, a branch or commit of it"
        ) from error
    files = [
        HubFile(
            PurePosixPath(path.partition(f"@{commit}/")[2]), entry["size"],
            entry["lfs"]["sha256"] if entry["lfs"] else entry["blob_id"],
        )
        for path, entry in entries.items()
        if path.endswith(".parquet")
    ]  # fmt: skip
    if not files:
        raise InterbasisError(f"hf:{name} has no parquet files; expected at least one")
    return PinnedDataset(name, commit, tuple(sorted(files, key=lambda file: file.path)))


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
        parquet, _ = parquet_module(self.file.path)
        with (
            Explained(f"could not read row group {group} of {self.source}", Exception, remedy=RESUME),
            self.dataset.open(self.file) as ranged,
            # one request for the column: without pre_buffer, ranges are not joined to larger ones
            parquet.ParquetFile(ranged, metadata=self.metadata, pre_buffer=False) as file,
        ):
            return file.read_row_group(group, columns=[column], use_threads=False).column(0)


def read_footer(dataset: PinnedDataset, file: HubFile) -> Footer:
    """Read the footer of a file, usually by one small request for its end."""
    parquet, _ = parquet_module(file.path)
    problem = f"could not read {file.path} of the data set {dataset.name} as a parquet file"
    with Explained(problem, Exception, remedy=RESUME), dataset.open(file) as ranged:
        return Footer(dataset, file, parquet.read_metadata(ranged))


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
