"""Token streams on disk: one long array, and where in it documents begin; `tokens:PATH`.

Token files are raw uint16 or uint32, npy, or parquet with a column of token lists. Files of raw numbers and
npy are memory-mapped, parquet is written out once as raw numbers, so that no file has to fit in memory.

Several files are one stream; a file is opened when tokens of it are read. Lengths come from the files' sizes
and headers. A process that reads some samples touches only the files they lie in, so data may be split over
processes that each see all files but read a part of them.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from interbasis.base.errors import Explained, InterbasisError
from interbasis.base.files import write_atomically
from interbasis.base.lazy import optional_import
from interbasis.data.download import cache_folder

RAW = {".uint16": np.uint16, ".u16": np.uint16, ".bin": np.uint16, ".uint32": np.uint32, ".u32": np.uint32}
SUFFIXES = (*RAW, ".npy", ".parquet")
COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
"""Names of parquet columns of token lists."""
TOKENS_PER_BLOCK = 2**22
"""Tokens that are searched for the ends of documents at a time."""
MAX_OPEN_FILES = 16
"""Files that a process has open at the same time."""
PROBED_BYTES = 2**16
"""Bytes at the beginning and the end of every file that its identity is made of."""


@dataclass(frozen=True, eq=False)
class TokenStream:
    """All documents one after the other."""

    tokens: Any  # [tokens], memory-mapped, or what can be sliced and made an array like it
    starts: np.ndarray | None = None  # [documents], where each begins; None where that is not known

    def with_documents(self, bos: int | None, eos: int | None) -> "TokenStream":
        """The same stream with documents found by the token that begins, or the one that ends each."""
        if bos is None and eos is None:
            return self
        mark, behind = (eos, 1) if bos is None else (bos, 0)
        starts = [np.zeros(1, np.int64)]
        for first in range(0, len(self.tokens), TOKENS_PER_BLOCK):
            block = np.asarray(self.tokens[first : first + TOKENS_PER_BLOCK])
            starts.append(np.flatnonzero(block == mark) + first + behind)
        unique = np.unique(np.concatenate(starts))
        return TokenStream(self.tokens, unique[unique < len(self.tokens)])

    def part(self, first: int, last: int) -> "TokenStream":
        """A run of tokens; the end of a document that began before is a document."""
        if self.starts is None:
            return TokenStream(self.tokens[first:last])
        inside = self.starts[(self.starts >= first) & (self.starts < last)]
        starts = np.union1d(inside - first, [0]) if last > first else inside
        return TokenStream(self.tokens[first:last], starts)


def cached_stream(identity: str, documents: Iterable[np.ndarray]) -> TokenStream:
    """Documents written to the cache once, as a flat stream, in bounded memory; read from there later.

    ``identity`` is whatever decides the tokens: file names with sizes and times, the tokenizer's content.
    """
    place = cache_folder() / "tokens" / hashlib.sha256(identity.encode()).hexdigest()[:24]
    if not (place / "starts.npy").is_file():
        _write_stream(place, documents)
    if not (place / "tokens.uint32").stat().st_size:
        return TokenStream(np.zeros(0, np.uint32), np.zeros(0, np.int64))
    tokens = np.memmap(place / "tokens.uint32", np.uint32, "r")
    return TokenStream(tokens, np.load(place / "starts.npy", allow_pickle=False))


def _write_stream(place: Path, documents: Iterable[np.ndarray]) -> None:
    """Write the tokens, then the beginnings of documents, which say that the tokens are whole."""
    ends = [0]

    def write(path: Path) -> None:
        with open(path, "wb") as file:
            for document in documents:
                if len(document):
                    ends.append(ends[-1] + len(document))
                    file.write(np.ascontiguousarray(document, np.uint32).data)

    with Explained(
        f"could not write tokens to {place}", OSError, remedy="set INTERBASIS_CACHE to a folder with room"
    ):
        place.mkdir(parents=True, exist_ok=True)
    write_atomically(place / "tokens.uint32", write)
    starts = np.array(ends[:-1], np.int64)
    write_atomically(place / "starts.npy", lambda path: np.save(path, starts))


def file_identity(*paths: Path) -> str:
    """Names, sizes and times of files: they change when a file does, and cost no reading."""
    statuses = ((path, path.stat()) for path in paths)
    return "\n".join(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}" for path, status in statuses)


def content_identity(paths: Sequence[Path]) -> str:
    """SHA-256 over names, sizes, and the first and last bytes of files, which reads little of them."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            digest.update(file.read(PROBED_BYTES))
            file.seek(max(0, size - PROBED_BYTES))
            digest.update(file.read(PROBED_BYTES))
    return digest.hexdigest()


def open_tokens(path: Path, column: str | None = None) -> TokenStream:
    """Open a token file; a row of a parquet file is a document."""
    if not path.is_file():
        raise InterbasisError(f"expected a token file at {path}, but there is no such file")
    if column is not None and path.suffix != ".parquet":
        raise InterbasisError(f"{path} is one row of tokens and has no columns; leave out column={column}")
    if path.suffix in RAW:
        dtype, size = np.dtype(RAW[path.suffix]), path.stat().st_size
        if not size or size % dtype.itemsize:
            raise InterbasisError(
                f"{path} has {size} bytes, expected a multiple of {dtype.itemsize}: little-endian {dtype} "
                "tokens"
            )
        return TokenStream(np.memmap(path, dtype.newbyteorder("<"), "r"))
    if path.suffix == ".npy":
        return TokenStream(_npy_array(path))
    if path.suffix == ".parquet":
        return open_parquets([path], column)
    raise InterbasisError(
        f"{path}: expected a token file that ends in {', '.join(RAW)}, .npy or .parquet; text is named as "
        "text:PATH,tokenizer=FOLDER"
    )


def _npy_array(path: Path) -> np.ndarray:
    """Tokens of an npy file, all dimensions in one: rows follow each other."""
    with Explained(f"could not read {path} as an npy file of plain numbers", OSError, ValueError, EOFError):
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    if tokens.dtype.kind not in "iu" or not tokens.size:
        raise InterbasisError(
            f"{path}: expected integer tokens, received {tokens.dtype} of shape {list(tokens.shape)}"
        )
    return tokens.reshape(-1)


def open_parquets(paths: Sequence[Path], column: str | None = None) -> TokenStream:
    """Open the tokens of parquet files, one after the other; a row is a document."""

    def rows() -> Iterator[np.ndarray]:
        for path in paths:
            file = open_parquet(path)
            name = find_column(path, file.schema_arrow.names, column, COLUMNS)
            for batch in file.iter_batches(batch_size=1024, columns=[name]):
                tokens, starts = concatenated_rows(batch.column(0), path, name)
                yield from np.split(tokens, starts[1:])

    return cached_stream(f"tokens {column}\n{file_identity(*paths)}", rows())


class TokenPiece(NamedTuple):
    """Piece of a stream: a file, or a part of one."""

    length: int
    """Number of tokens, known without reading them."""
    read: Callable[[], np.ndarray]  # [tokens]


def _piece(path: Path, column: str | None) -> TokenPiece:
    """File of a stream, memory-mapped when it is read."""

    def read() -> np.ndarray:
        return _opened_tokens(path, column, path.stat().st_mtime_ns if path.is_file() else 0)

    if path.suffix != ".parquet":
        return TokenPiece(len(open_tokens(path).tokens), read)
    file = open_parquet(path)
    name = find_column(path, file.schema_arrow.names, column, COLUMNS)
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    counts = [token_count(group, name) for group in groups]  # where the footer says it
    length = sum(filter(None, counts)) if None not in counts else len(read())
    return TokenPiece(length, read)


@lru_cache(maxsize=MAX_OPEN_FILES)
def _opened_tokens(path: Path, column: str | None, written: int) -> np.ndarray:
    """Tokens of a file as it was written at some time."""
    return np.asarray(open_tokens(path, column).tokens)


class JoinedTokens:
    """Pieces one after the other, or a part of that, as an array that is read when it is asked for."""

    def __init__(self, pieces: Sequence[TokenPiece]):
        self._pieces = pieces
        self._ends = np.cumsum([piece.length for piece in pieces])
        self._first, self._last = 0, int(self._ends[-1])

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, index: slice | int | np.ndarray) -> "JoinedTokens | np.ndarray | np.generic":
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            assert step == 1
            part = copy(self)
            part._first, part._last = self._first + first, self._first + max(first, last)
            return part
        places = np.atleast_1d(np.asarray(index)) + self._first
        numbers = np.searchsorted(self._ends, places, side="right")
        tokens = [
            self._pieces[k].read()[place - self._ends[k]]  # counted from its end
            for k, place in zip(numbers, places, strict=True)
        ]
        return np.array(tokens) if isinstance(index, np.ndarray) else tokens[0]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        parts = [np.zeros(0, np.uint16)]
        number, place = int(np.searchsorted(self._ends, self._first, side="right")), self._first
        while place < self._last:
            piece, end = self._pieces[number], int(self._ends[number])
            start = end - piece.length
            parts.append(piece.read()[place - start : min(self._last, end) - start])
            number, place = number + 1, end
        return np.concatenate(parts).astype(dtype) if dtype else np.concatenate(parts)


def open_joined(paths: Sequence[Path], column: str | None, documents: bool) -> TokenStream:
    """Open the tokens of several files.

    Where the documents of parquet files matter, which are their rows, all files are read.
    """
    if documents and all(path.suffix == ".parquet" for path in paths):
        return open_parquets(paths, column)
    return TokenStream(JoinedTokens([_piece(path, column) for path in paths]))


def token_files(path: str) -> list[Path]:
    """Token files of a folder, or of a pattern with * in it, by name.

    Raises:
        InterbasisError: There is none.
    """
    folder, pattern = Path(path), "**/*"
    if not folder.is_dir():
        parts = folder.parts
        fixed = next(k for k, part in enumerate(parts) if set("*?[") & set(part))
        folder, pattern = Path(*parts[:fixed]), "/".join(parts[fixed:])
    files = sorted(file for file in folder.glob(pattern) if file.suffix in SUFFIXES)
    if not files:
        raise InterbasisError(
            f"tokens:{path}: expected files that end in {', '.join(SUFFIXES)} there, but there are none"
        )
    return files


def concatenated_rows(lists: Any, source: Path | str, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of a pyarrow column of lists, one after the other, and where rows that hold some begin."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.compute as compute  # type: ignore[import-untyped]

    lists = lists.combine_chunks() if isinstance(lists, pyarrow.ChunkedArray) else lists
    kind, types = lists.type, pyarrow.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    values = lists.flatten() if is_list else lists
    whole = not values.null_count and (types.is_integer(values.type) or not len(values))
    if not (is_list and whole) or (len(values) and compute.min(values).as_py() < 0):
        raise InterbasisError(f"{source}: expected lists of tokens in column {column!r}")
    lengths = compute.if_else(lists.is_valid(), compute.list_value_length(lists), 0)
    counts = lengths.to_numpy(zero_copy_only=False)
    starts = np.cumsum(counts, dtype=np.int64) - counts
    tokens = values.to_numpy(zero_copy_only=False) if len(values) else np.zeros(0, np.uint32)
    return tokens.astype(np.uint32), starts[counts > 0]


def token_count(group: Any, column: str) -> int | None:
    """Number of tokens that a row group of a parquet file holds, where its footer says it."""
    total = 0
    for chunk in (group.column(k) for k in range(group.num_columns)):
        if chunk.path_in_schema.split(".")[0] != column:
            continue
        if chunk.statistics is None or not chunk.statistics.has_null_count:
            return None
        total += chunk.num_values - chunk.statistics.null_count
    return total


def open_parquet(path: Path) -> Any:
    """Open a parquet file, for reading a batch of rows at a time."""
    parquet, arrow_error = parquet_module(path)
    with Explained(f"could not read {path} as a parquet file", OSError, arrow_error):
        return parquet.ParquetFile(path)


def parquet_module(path: PurePath) -> tuple[Any, type[Exception]]:
    """pyarrow's module for parquet files, needed for a file, and the class of its errors."""
    parquet = optional_import("pyarrow.parquet", f"reading {path} needs pyarrow", "parquet")
    from pyarrow import ArrowException

    return parquet, ArrowException


def find_column(
    source: PurePath | str, columns: Sequence[str], column: str | None, names: Sequence[str]
) -> str:
    """The column that is asked for, else the first of the usual names that a table has."""
    wanted = (column,) if column else names
    for name in wanted:
        if name in columns:
            return name
    raise InterbasisError(
        f"{source} has no column {' or '.join(wanted)}; it has {', '.join(columns)}: name one as column=NAME"
    )
