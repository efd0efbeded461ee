"""Token files: raw uint16 or uint32, npy, or parquet with a column of token lists; `tokens:PATH`.

Files of raw numbers and npy are memory-mapped, parquet is written out once as raw numbers, so that no file
has to fit in memory.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from interbasis.base.errors import InterbasisError
from interbasis.data.flat import Flat, converted, identity_of

RAW = {".uint16": np.uint16, ".u16": np.uint16, ".bin": np.uint16, ".uint32": np.uint32, ".u32": np.uint32}
COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
"""What a parquet column of token lists is called."""


def open_tokens(path: Path, column: str | None = None) -> Flat:
    """The tokens of a file; a row of a parquet file is a document."""
    if not path.is_file():
        raise InterbasisError(f"expected a token file at {path}, but there is no such file")
    if column is not None and path.suffix != ".parquet":
        raise InterbasisError(f"{path} is one row of tokens and has no columns; leave out column={column}")
    if path.suffix in RAW:
        return Flat(_mapped(path, np.dtype(RAW[path.suffix])))
    if path.suffix == ".npy":
        return Flat(_array(path))
    if path.suffix == ".parquet":
        return open_parquets([path], column)
    raise InterbasisError(
        f"{path}: expected a token file that ends in {', '.join(RAW)}, .npy or .parquet; text is named as "
        "text:PATH,tokenizer=FOLDER"
    )


def open_parquets(paths: Sequence[Path], column: str | None = None) -> Flat:
    """The tokens of parquet files, one after the other; a row is a document."""
    rows = (row for path in paths for row in _rows(path, column))
    return converted(f"tokens {column}\n{identity_of(*paths)}", rows)


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    size = path.stat().st_size
    if not size or size % dtype.itemsize:
        raise InterbasisError(
            f"{path} has {size} bytes, expected a multiple of {dtype.itemsize}: little-endian {dtype} tokens"
        )
    return np.memmap(path, dtype.newbyteorder("<"), "r")


def _array(path: Path) -> np.ndarray:
    """All dimensions in one: rows follow each other."""
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InterbasisError(f"could not read {path} as an npy file of plain numbers ({error})") from error
    if tokens.dtype.kind not in "iu" or not tokens.size:
        raise InterbasisError(
            f"{path}: expected integer tokens, received {tokens.dtype} of shape {list(tokens.shape)}"
        )
    return tokens.reshape(-1)


def _rows(path: Path, column: str | None) -> Iterator[np.ndarray]:
    file = open_parquet(path)
    name = column_of(path, file.schema_arrow.names, (column,) if column else COLUMNS)
    for batch in file.iter_batches(batch_size=1024, columns=[name]):
        tokens, starts = flat_tokens(batch.column(0), path, name)
        yield from np.split(tokens, starts[1:])


def flat_tokens(lists: Any, where: Path | str, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a pyarrow column of lists, one after the other, and where rows that hold some begin."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.compute as compute  # type: ignore[import-untyped]

    lists = lists.combine_chunks() if isinstance(lists, pyarrow.ChunkedArray) else lists
    kind, are = lists.type, pyarrow.types
    is_list = are.is_list(kind) or are.is_large_list(kind) or are.is_fixed_size_list(kind)
    values = lists.flatten() if is_list else lists
    whole = not values.null_count and (are.is_integer(values.type) or not len(values))
    if not (is_list and whole) or (len(values) and compute.min(values).as_py() < 0):
        raise InterbasisError(f"{where}: expected lists of tokens in column {column!r}")
    counts = compute.if_else(lists.is_valid(), compute.list_value_length(lists), 0).to_numpy(
        zero_copy_only=False
    )
    starts = np.cumsum(counts, dtype=np.int64) - counts
    tokens = values.to_numpy(zero_copy_only=False) if len(values) else np.zeros(0, np.uint32)
    return tokens.astype(np.uint32), starts[counts > 0]


def tokens_in_footer(group: Any, column: str) -> int | None:
    """How many tokens a row group of a parquet file holds, where its footer says it."""
    total = 0
    for chunk in (group.column(k) for k in range(group.num_columns)):
        if chunk.path_in_schema.split(".")[0] != column:
            continue
        if chunk.statistics is None or not chunk.statistics.has_null_count:
            return None
        total += chunk.num_values - chunk.statistics.null_count
    return total


def open_parquet(path: Path) -> Any:
    """A parquet file, for reading a batch of rows at a time."""
    parquet, error_of_arrow = parquet_module(path)
    try:
        return parquet.ParquetFile(path)
    except (OSError, error_of_arrow) as error:
        raise InterbasisError(f"could not read {path} as a parquet file ({error})") from error


def parquet_module(path: PurePath) -> tuple[Any, type[Exception]]:
    """pyarrow's module for parquet files, needed for a file, and the class of its errors."""
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]
        from pyarrow import ArrowException
    except ImportError as error:
        raise InterbasisError(
            f"reading {path} needs pyarrow; install it with: pip install 'interbasis[parquet]'"
        ) from error
    return parquet, ArrowException


def column_of(path: PurePath | str, there: Sequence[str], wanted: Sequence[str]) -> str:
    """The first of the wanted columns that a table has."""
    for name in wanted:
        if name in there:
            return name
    raise InterbasisError(
        f"{path} has no column {' or '.join(wanted)}; it has {', '.join(there)}: name one as column=NAME"
    )
