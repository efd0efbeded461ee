"""Memory: amounts as people write them, what this process holds, and what temporaries may take."""

import ctypes
import gc
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from interbasis.base.errors import InterbasisError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

M_MMAP_THRESHOLD = -3
"""Constant of glibc's malloc.h."""
SPARE = 1.05
"""Ratio of the limit on memory that a message recommends to what was needed."""
MAX_KEPT_BYTES = 2**20
"""Blocks that the C library may keep after they are freed, where memory is limited."""

_workspace: ContextVar[int | None] = ContextVar("workspace", default=None)


def parse_bytes(text: str) -> int:
    """`8GB` as a number of bytes.

    Raises:
        InterbasisError: It is not an amount of memory.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in UNITS or not float(match[1]):
        raise InterbasisError(f"expected an amount of memory as 8GB, 500MB or 7.5GiB, received {text!r}")
    return int(float(match[1]) * UNITS[match[2].upper()])


def format_bytes(amount: float) -> str:
    """A number of bytes with two digits and a unit."""
    unit = next(unit for unit in ("TB", "GB", "MB", "KB", "B") if amount >= UNITS[unit] or unit == "B")
    value = amount / UNITS[unit]
    return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"


def sufficient_memory(needed: float) -> str:
    """An amount to give as a limit where so many bytes are needed: rounded upwards, with some to spare.

    What a process holds differs by a few per cent from one call to the next.
    """
    return f"{math.ceil(SPARE * needed / 10**8) / 10:.1f}GB"


def resident_bytes() -> int:
    """Bytes that this process holds in memory now; 0 where the system does not say."""
    status = Path("/proc/self/statm")
    try:
        import resource

        return int(status.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ImportError, ValueError, IndexError):
        return 0


@contextmanager
def collecting_later() -> Iterator[None]:
    """Python looks for unused objects after this, not during it.

    Opening a model makes a million objects that stay (classes and functions of transformers, mostly), and
    Python would look through all of them again and again: a fifth of the time that it takes.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def release_memory() -> None:
    """Give memory that is free but held by the C library back to the system, where it can do that (glibc)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def return_freed_memory() -> None:
    """Large tensors go back to the system as soon as they are freed, where the C library is glibc.

    It would keep freed blocks of up to 32 MB otherwise, and hold more than what is in use.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAX_KEPT_BYTES)


def peak_bytes() -> int:
    """The most that this process has held so far; 0 where the system does not say.

    Linux is asked for the peak of this program alone: `getrusage` also counts what the process held before
    it became this program, which is what its parent held.
    """
    with suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    try:
        import resource
        import sys
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def limited_workspace(amount: int | None) -> Iterator[None]:
    """Temporaries that come in blocks take about this many bytes at most meanwhile; None is no limit."""
    before = _workspace.set(amount)
    try:
        yield
    finally:
        _workspace.reset(before)


def elements_within(most: int, itemsize: int) -> int:
    """Number of elements that a block of temporaries may hold: ``most``, or what fits into the workspace."""
    amount = _workspace.get()
    return most if amount is None else max(1, min(most, amount // itemsize))
