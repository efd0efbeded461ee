"""Standard output and standard error as they are found: closed, full, or without Unicode."""

import codecs
import errno
import io
import os
import sys
import unicodedata
from contextlib import suppress
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
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    elif type(sys.stdout) is io.TextIOWrapper:
        terminal = sys.stdout.isatty()
        sys.stdout = _Watched(sys.stdout.buffer, sys.stdout.encoding, DEGRADE, line_buffering=terminal)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    elif type(sys.stderr) is io.TextIOWrapper:
        sys.stderr = _Unfailing(sys.stderr.buffer, sys.stderr.encoding, DEGRADE, line_buffering=True)


def output_failure() -> str | None:
    """Why standard output could not be written to; None where it could."""
    return sys.stdout.failure if isinstance(sys.stdout, _Watched) else None


def discard_output() -> None:
    """Let everything that is still to be written to standard output go nowhere."""
    _redirect(sys.stdout)


class _Watched(io.TextIOWrapper):
    """A stream that knows why it could not be written to."""

    failure: str | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.failure = error.strerror or str(error)
            raise

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.failure = error.strerror or str(error)
            raise


class _Unfailing(io.TextIOWrapper):
    """A stream that is redirected to nowhere as soon as it cannot be written to."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            _redirect(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _redirect(self)


def _redirect(stream: TextIO) -> None:
    """Make the file behind a stream the one that keeps nothing."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _degrade(error: UnicodeError) -> tuple[str, int]:
    """Characters in ASCII, as far as they can be told apart there."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(map(_in_ascii, text)), error.end


def _in_ascii(character: str) -> str:
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return ASCII.get(character) or plain or "?"


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
