"""Standard output and standard error that may be closed, full, or without Unicode."""

import codecs
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

ASCII = {
    "…": "...", "·": "-", "–": "-", "—": "-", "−": "-", "→": "->", "←": "<-", "×": "x", "≤": "<=", "≥": ">=",
    "≈": "~", "≠": "!=", "±": "+-", "√": "sqrt", "Σ": "sum", "∞": "inf", "α": "alpha", "β": "beta",
    "γ": "gamma", "δ": "delta", "ε": "eps", "λ": "lambda", "σ": "sigma", "Δ": "Delta", "Λ": "Lambda",
    "‘": "'", "’": "'", "“": '"', "”": '"', "✓": "yes", "✗": "no",
}  # fmt: skip
"""Replacements of characters that a terminal lacks; other letters lose their accents."""
DEGRADE = "interbasis-degrade"
"""Name of the handler of encoding errors."""


def prepare_streams() -> None:
    """Make sure that printing does not fail where nobody reads, or where characters are missing.

    Standard error is beside the result: what cannot be written there is dropped. Standard output keeps its
    errors, for a result that is not printed must not go unnoticed.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file that is opened would take its place
            os.open(os.devnull, os.O_RDWR)
    codecs.register_error(DEGRADE, _degrade)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif type(stream) is io.TextIOWrapper:
            by_line = name == "stderr" or stream.isatty()
            watched = _WatchedStream(stream.buffer, stream.encoding, DEGRADE, line_buffering=by_line)
            watched.drops_text = name == "stderr"
            setattr(sys, name, watched)


def output_failure() -> str | None:
    """Reason why standard output could not be written to; None where it could."""
    return sys.stdout.failure if isinstance(sys.stdout, _WatchedStream) else None


def discard_output() -> None:
    """Let everything that is still to be written to standard output go nowhere."""
    _redirect(sys.stdout)


class _WatchedStream(io.TextIOWrapper):
    """A stream that records why it could not be written to."""

    failure: str | None = None
    drops_text = False
    """Whether the stream is redirected to nowhere as soon as it cannot be written to."""

    def write(self, text: str) -> int:
        with self._watching():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._watching():
            super().flush()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error.strerror or str(error)
            if not self.drops_text:
                raise
            _redirect(self)


def _redirect(stream: TextIO) -> None:
    """Make the file behind a stream the one that keeps nothing."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _degrade(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement in ASCII for characters that cannot be encoded, and where it ends."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = ""
    for character in error.object[error.start : error.end]:
        plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        text += ASCII.get(character) or plain or "?"
    return text, error.end


OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "bad_alloc",
    "failed to map segment", "can't start new thread",
)  # fmt: skip
"""Messages of libraries that run out of memory, in lower case."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, in whichever library."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    message = str(error).lower()
    return any(words in message for words in OUT_OF_MEMORY)


def can_load_torch() -> bool:
    """Whether PyTorch fits into the memory that this process may use, where that is limited.

    Loading it beyond a limit (`ulimit -v`) ends a process without a word, so that a copy of this one tries.
    """
    import resource

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if all(limit == resource.RLIM_INFINITY for limit in limits) or "torch" in sys.modules:
        return True
    copy = os.fork()
    if copy == 0:
        with suppress(BaseException):
            discard = os.open(os.devnull, os.O_WRONLY)
            os.dup2(discard, 1)
            os.dup2(discard, 2)
            import torch  # noqa: F401

            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
