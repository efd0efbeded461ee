"""Many token files as one stream; a file is opened when tokens of it are read.

Lengths come from the files' sizes and headers. A process that reads some samples touches only the files they
lie in, so data may be split over processes that each see all files but read their own.
"""

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from interbasis.base.errors import InterbasisError
from interbasis.data.flat import Flat
from interbasis.data.tokens import (
    COLUMNS,
    RAW,
    column_of,
    open_parquet,
    open_parquets,
    open_tokens,
    tokens_in_footer,
)

SUFFIXES = (*RAW, ".npy", ".parquet")
MAX_OPEN_FILES = 16
"""Of a process, at the same time."""
PROBED_BYTES = 2**16
"""Of the beginning and the end of every file, for its identity."""


@dataclass(frozen=True, eq=False)
class TokenFile:
    """One file of a stream."""

    path: Path
    column: str | None = None

    @property
    def tokens(self) -> np.ndarray:  # [tokens]
        """Its tokens, memory-mapped."""
        written = self.path.stat().st_mtime_ns if self.path.is_file() else 0
        return _opened(self.path, self.column, written)

    @cached_property
    def length(self) -> int:
        """How many tokens it holds, known without reading them."""
        if self.path.suffix == ".parquet":
            return _tokens_of_parquet(self.path, self.column)
        return len(open_tokens(self.path).tokens)


@lru_cache(maxsize=MAX_OPEN_FILES)
def _opened(path: Path, column: str | None, written: int) -> np.ndarray:
    """A file as it was written at some time."""
    return np.asarray(open_tokens(path, column).tokens)


class Tokens(Protocol):
    """One piece of a stream: a file, or a part of one."""

    @property
    def tokens(self) -> np.ndarray:  # [tokens]
        """Its tokens, read when they are asked for."""

    @property
    def length(self) -> int:
        """How many tokens it holds, known without reading them."""


class JoinedTokens:
    """Pieces one after the other, or a part of that, as an array that is read when it is asked for."""

    def __init__(self, pieces: Sequence[Tokens]):
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
        found = [
            self._pieces[k].tokens[place - self._ends[k]]  # counted from its end
            for k, place in zip(numbers, places, strict=True)
        ]
        return np.array(found) if isinstance(index, np.ndarray) else found[0]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        parts = [np.zeros(0, np.uint16)]
        number, place = int(np.searchsorted(self._ends, self._first, side="right")), self._first
        while place < self._last:
            piece, end = self._pieces[number], int(self._ends[number])
            start = end - piece.length
            parts.append(piece.tokens[place - start : min(self._last, end) - start])
            number, place = number + 1, end
        return np.concatenate(parts).astype(dtype) if dtype else np.concatenate(parts)


def open_joined(paths: Sequence[Path], column: str | None, documents: bool) -> Flat:
    """The tokens of several files.

    Where the documents of parquet files matter, which are their rows, all files are read.
    """
    if documents and all(path.suffix == ".parquet" for path in paths):
        return open_parquets(paths, column)
    return Flat(JoinedTokens([TokenFile(path, column) for path in paths]))


def identity_of_files(paths: Sequence[Path]) -> str:
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


def token_files(path: str) -> list[Path]:
    """The token files of a folder, or of a pattern with * in it, by name.

    Raises:
        InterbasisError: There is none.
    """
    place = Path(path)
    if place.is_dir():
        found = [file for file in place.rglob("*") if file.suffix in SUFFIXES]
    else:
        parts = place.parts
        fixed = next(k for k, part in enumerate(parts) if set("*?[") & set(part))
        found = [
            file for file in Path(*parts[:fixed]).glob("/".join(parts[fixed:])) if file.suffix in SUFFIXES
        ]
    if not found:
        raise InterbasisError(
            f"tokens:{path}: expected files that end in {', '.join(SUFFIXES)} there, but there are none"
        )
    return sorted(found)


def _tokens_of_parquet(path: Path, column: str | None) -> int:
    """From the file's footer where that says it; else from the file."""
    file = open_parquet(path)
    name = column_of(path, file.schema_arrow.names, (column,) if column else COLUMNS)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    lengths = [tokens_in_footer(group, name) for group in groups]
    known = [length for length in lengths if length is not None]
    return sum(known) if len(known) == len(lengths) else len(open_parquets([path], column).tokens)
