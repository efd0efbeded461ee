"""Token data of the Hub, streamed: row groups of parquet files, each read when tokens of it are wanted.

A parquet file ends in a footer that says where every row group and column lies and how many values it holds.
Footers alone tell how many tokens a data set has, so a process asks for the one column of the row groups that
its samples lie in, and for nothing else.
"""

import hashlib
import io
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from interbasis.base.errors import InterbasisError
from interbasis.data.hub_files import HubFile, PinnedDataset, RangedFile
from interbasis.data.tokens import (
    COLUMNS,
    JoinedTokens,
    TokenStream,
    concatenated_rows,
    find_column,
    parquet_module,
    token_count,
)

MAX_CACHED_BYTES = 2**26
"""Bytes of tokens of row groups that a process keeps; larger data are read again in every pass."""
MAX_FOOTERS_TOGETHER = 8
"""Files whose footers are asked for at the same time."""
TAIL_BYTES = 8
"""Bytes at the end of a parquet file: the length of its footer, and PAR1."""


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
        try:
            # one request for the column: without pre_buffer, ranges are not joined to larger ones
            ranged = RangedFile(self.dataset, self.file)
            with parquet.ParquetFile(ranged, metadata=self.metadata, pre_buffer=False) as file:
                return file.read_row_group(group, columns=[column], use_threads=False).column(0)
        except arrow_error as error:
            raise InterbasisError(
                f"could not read row group {group} of {self.source} ({str(error).splitlines()[0]})"
            ) from error


def read_footer(dataset: PinnedDataset, file: HubFile) -> Footer:
    """Read the footer of a file: two small reads."""
    parquet, arrow_error = parquet_module(file.path)
    tail = dataset.read(file, max(0, file.size - TAIL_BYTES), file.size)
    length = int.from_bytes(tail[:4], "little")
    try:
        if tail[4:] != b"PAR1" or length > file.size - TAIL_BYTES:
            raise ValueError("it does not end in a footer")
        footer = dataset.read(file, file.size - TAIL_BYTES - length, file.size - TAIL_BYTES)
        metadata = parquet.read_metadata(io.BytesIO(b"PAR1" + footer + tail))
    except (arrow_error, ValueError) as error:
        if isinstance(error, InterbasisError):
            raise
        raise InterbasisError(
            f"could not read {file.path} of the data set {dataset.name} as a parquet file ({error})"
        ) from error
    return Footer(dataset, file, metadata)


class RowGroupCache:
    """Tokens of the row groups that were read last."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[RowGroup, np.ndarray] = OrderedDict()

    def tokens(self, group: "RowGroup") -> np.ndarray:
        """Tokens of a row group, read if they are not cached."""
        if group in self._tokens:
            self._tokens.move_to_end(group)
            return self._tokens[group]
        self._tokens[group] = tokens = group.read()[0]
        while len(self._tokens) > 1 and sum(part.nbytes for part in self._tokens.values()) > MAX_CACHED_BYTES:
            self._tokens.popitem(last=False)
        return tokens


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Tokens of a row group."""

    footer: Footer
    number: int
    column: str
    length: int
    """Number of tokens, by the footer."""
    cache: RowGroupCache

    @property
    def tokens(self) -> np.ndarray:  # [tokens]
        """Tokens, read if they are not cached."""
        return self.cache.tokens(self)

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [tokens] and where the rows that hold some begin [rows]."""
        rows, source = self.footer.read(self.number, self.column), self.footer.source
        tokens, starts = concatenated_rows(rows, source, self.column)
        if len(tokens) != self.length:
            raise InterbasisError(
                f"row group {self.number} of {source} holds {len(tokens)} tokens, but its footer says "
                f"{self.length}; leave stream=yes out to download the files"
            )
        return tokens, starts


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
    cache, total, done, together = RowGroupCache(), 0, 0, 1 if tokens else MAX_FOOTERS_TOGETHER
    with ThreadPoolExecutor(MAX_FOOTERS_TOGETHER) as pool:
        while done < len(files) and (tokens is None or total < tokens):
            batch = files[done : done + together]
            for footer in pool.map(lambda file: read_footer(dataset, file), batch):
                groups += _row_groups(footer, column, cache)
            total = sum(group.length for group in groups)
            done, together = done + len(batch), min(2 * together, MAX_FOOTERS_TOGETHER)
    if not groups:
        raise InterbasisError(f"the data set {dataset.name} has no tokens")
    starts = None if cut is None else _starts_near(groups, total - int(total * cut))
    return TokenStream(JoinedTokens(groups), starts)


def _row_groups(footer: Footer, column: str | None, cache: RowGroupCache) -> Iterator[RowGroup]:
    """Row groups that hold tokens."""
    name = find_column(footer.source, footer.columns, column, COLUMNS)
    for number in range(footer.metadata.num_row_groups):
        length = token_count(footer.metadata.row_group(number), name)
        if length is None:
            raise InterbasisError(
                f"{footer.source} does not say how many tokens its row groups hold (statistics with null "
                "counts), which streaming requires; leave stream=yes out to download the files"
            )
        if length:
            yield RowGroup(footer, number, name, length, cache)


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
