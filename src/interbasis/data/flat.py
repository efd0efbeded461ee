"""Token streams on disk: one long memory-mapped array, and where in it documents begin."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from interbasis.base.errors import InterbasisError
from interbasis.data.download import cache_folder

TOKENS_PER_BLOCK = 2**22
"""Tokens that are looked through at a time."""


@dataclass(frozen=True, eq=False)
class Flat:
    """All documents one after the other."""

    tokens: Any  # [tokens], memory-mapped, or what can be sliced and made an array like it
    starts: np.ndarray | None = None  # [documents], where each begins; None where that is not known

    def documents(self, bos: int | None, eos: int | None) -> "Flat":
        """The same stream with documents found by the token that begins, or the one that ends each."""
        if bos is None and eos is None:
            return self
        boundaries = [np.zeros(1, np.int64)]
        for first in range(0, len(self.tokens), TOKENS_PER_BLOCK):
            block = np.asarray(self.tokens[first : first + TOKENS_PER_BLOCK])
            boundaries.append(np.flatnonzero(block == bos) + first if bos is not None else boundaries[0][:0])
            boundaries.append(np.flatnonzero(block == eos) + first + 1 if bos is None else boundaries[0][:0])
        starts = np.unique(np.concatenate(boundaries))
        return Flat(self.tokens, starts[starts < len(self.tokens)])

    def part(self, first: int, last: int) -> "Flat":
        """A run of tokens; the rest of a document that began before is a document."""
        if self.starts is None:
            return Flat(self.tokens[first:last])
        inside = self.starts[(self.starts >= first) & (self.starts < last)]
        return Flat(self.tokens[first:last], np.union1d(inside - first, [0]) if last > first else inside)


def converted(identity: str, documents: Iterable[np.ndarray]) -> Flat:
    """Documents written to the cache once, as a flat stream, in bounded memory; found there the next time.

    ``identity`` is whatever decides the tokens: file names with sizes and times, the tokenizer's content.
    """
    place = cache_folder() / "tokens" / hashlib.sha256(identity.encode()).hexdigest()[:24]
    if not (place / "starts.npy").is_file():
        try:
            _convert(place, documents)
        except OSError as error:
            raise InterbasisError(
                f"could not write tokens to {place} ({error.strerror or error}); set INTERBASIS_CACHE to a "
                "folder with room"
            ) from error
    if not (place / "tokens.uint32").stat().st_size:
        return Flat(np.zeros(0, np.uint32), np.zeros(0, np.int64))
    tokens = np.memmap(place / "tokens.uint32", np.uint32, "r")
    return Flat(tokens, np.load(place / "starts.npy", allow_pickle=False))


def _convert(place: Path, documents: Iterable[np.ndarray]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    outer = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    temporary = outer / place.name  # with the mode that the umask leaves, which the outer one does not have
    try:
        temporary.mkdir()
        starts, total = [], 0
        with open(temporary / "tokens.uint32", "wb") as file:
            for document in documents:
                if len(document):
                    starts.append(total)
                    total += len(document)
                    file.write(np.ascontiguousarray(document, np.uint32).data)
            file.flush()
            os.fsync(file.fileno())
        np.save(temporary / "starts.npy", np.array(starts, np.int64))
        if (place / "starts.npy").is_file():  # another process was faster, and may be reading it
            return
        if place.exists():  # the remains of another attempt
            shutil.rmtree(place)
        try:
            temporary.rename(place)
        except OSError:
            if not (place / "starts.npy").is_file():
                raise
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def identity_of(*paths: Path) -> str:
    """Names, sizes and times of files: they change when a file does, and cost no reading."""
    rows = []
    for path in paths:
        status = path.stat()
        rows.append(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(rows)
