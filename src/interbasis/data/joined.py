"""Many token files as one stream; a file is opened when tokens of it are read.

Lengths come from the files' sizes and headers. A process that reads some samples touches only the files they
lie in, so data may be split over processes that each see all files but read their own.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from interbasis.data.flat import Flat
from interbasis.data.tokens import COLUMNS, RAW, column_of, open_parquet, open_parquets, open_tokens
from interbasis.runtime.errors import InterbasisError

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


class JoinedTokens:
    """Files one after the other, or a part of that, as an array that is read when it is asked for."""

    def __init__(self, files: Sequence[TokenFile], first: int = 0, last: int | None = None):
        self._files = files
        self._ends = np.cumsum([file.length for file in files])
        self._first = first
        self._last = int(self._ends[-1]) if last is None else last

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, index: slice | int | np.ndarray) -> "JoinedTokens | np.ndarray | np.generic":
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            assert step == 1
            return JoinedTokens(self._files, self._first + first, self._first + max(first, last))
        places = np.atleast_1d(np.asarray(index))
        numbers = np.searchsorted(self._ends, places + self._first, side="right")
        starts = self._ends - [file.length for file in self._files]
        found = [
            self._files[k].tokens[place + self._first - starts[k]]
            for k, place in zip(numbers, places, strict=True)
        ]
        return np.array(found) if isinstance(index, np.ndarray) else found[0]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        parts = [np.zeros(0, np.uint16)]
        for file, end in zip(self._files, self._ends.tolist(), strict=True):
            start = end - file.length
            a, b = max(self._first, start), min(self._last, end)
            if a < b:
                parts.append(file.tokens[a - start : b - start])
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
    total = 0
    for group in range(file.metadata.num_row_groups):
        groups = file.metadata.row_group(group)
        own = [groups.column(k) for k in range(groups.num_columns)]
        for chunk in own:
            if chunk.path_in_schema.split(".")[0] != name:
                continue
            if chunk.statistics is None or not chunk.statistics.has_null_count:
                return len(open_parquets([path], column).tokens)
            total += chunk.num_values - chunk.statistics.null_count
    return total
