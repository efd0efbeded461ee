"""Which processes are running on this machine."""

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path


def is_running(process: int) -> bool:
    """Whether a process of this machine, by its id, has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@cache
def host() -> str:
    """The name of this machine, in ASCII."""
    return platform.node().encode("ascii", "replace").decode()[:100] or "unknown"


@cache
def boot_id() -> str:
    """A name of the running kernel, which changes when the machine is started again."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return host()
