"""`interbasis doctor`: what is installed, and what can be used here."""

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from interbasis.base.files import existing_parent
from interbasis.base.records import Record
from interbasis.base.version import VERSION
from interbasis.cli import common

OPTIONAL = {
    "transformers": "language models by name or folder (hf:…)",
    "tokenizers": "text with a tokenizer (text:…)",
    "huggingface_hub": "models and data sets of the Hugging Face Hub",
    "pyarrow": "parquet files",
    "leidenalg": "cross-check of modules (interbasis modules --cross-check)",
    "yaml": "configs in YAML",
    "playwright": "pictures of the page in a browser",
}
PACKAGES = {"yaml": "PyYAML"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class MachineMemory(Record):
    """Memory of the machine, in bytes."""

    total: int
    free: int


class Cache(Record):
    """Folder in which downloaded data sets are stored."""

    folder: Path
    free_bytes: int | None
    files: dict[str, bool]
    """Whether each file is there."""


class Diagnosis(Record):
    """Software that is installed, and what can be used here."""

    interbasis: str
    python: str
    system: str
    torch: str
    threads: int
    processors: int | None
    cuda: bool
    memory: MachineMemory | None
    packages: dict[str, str | None]
    """Versions of optional packages; None for those that are missing."""
    browser: str | None
    cache: Cache
    network: dict[str, bool] | None
    """Whether each host can be reached; None where that was not tried."""


def doctor(
    *,
    network: Annotated[bool, common.flag("Check whether the hosts of the data sets can be reached.")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Show what is installed and what works on this machine.

    No host is contacted without --network.

    Example: interbasis doctor --network
    """
    import torch

    from interbasis.base.connection import can_connect
    from interbasis.data.cifar10 import ARCHIVE
    from interbasis.data.download import cache_folder
    from interbasis.data.mnist import FILES

    cache = cache_folder()
    remotes = [ARCHIVE, *FILES["train"], *FILES["test"]]
    homes = [home for remote in remotes for home in remote.homes]
    hosts = dict.fromkeys([*(urlsplit(home).hostname or "" for home in homes), "huggingface.co"])
    diagnosis = Diagnosis(
        interbasis=VERSION,
        python=platform.python_version(),
        system=platform.platform(),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        cuda=torch.cuda.is_available(),
        memory=_memory(),
        packages={name: _installed(name) for name in OPTIONAL},
        browser=next((path for name in BROWSERS if (path := shutil.which(name))), None),
        cache=Cache(
            folder=cache,
            free_bytes=_free(cache),
            files={remote.name: (cache / remote.name).is_file() for remote in remotes},
        ),
        network={host: can_connect(host, 443) for host in hosts} if network else None,
    )
    common.show(diagnosis, as_json, _lines)


def _installed(name: str) -> str | None:
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return version(PACKAGES.get(name, name))
    except PackageNotFoundError:
        return "installed"


def _memory() -> MachineMemory | None:
    """Memory of the machine; None where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file)
        total, free = (1024 * int(rows[key].split()[0]) for key in ("MemTotal", "MemAvailable"))
        return MachineMemory(total=total, free=free)
    except (OSError, KeyError, ValueError):
        return None


def _free(folder: Path) -> int | None:
    """Free bytes where the folder is, or would be."""
    try:
        return shutil.disk_usage(existing_parent(folder)).free
    except OSError:
        return None


def _lines(report: Diagnosis) -> Iterator[str]:
    gib, memory, cache = 2**30, report.memory, report.cache
    yield f"interbasis {report.interbasis} · Python {report.python} · {report.system}"
    yield (
        f"torch {report.torch} · {report.threads} threads of {report.processors} processors · "
        f"{'CUDA' if report.cuda else 'no CUDA'}"
        + (f" · {memory.free / gib:.1f} of {memory.total / gib:.1f} GiB memory free" if memory else "")
    )
    for name, installed in report.packages.items():
        yield f"{'✓' if installed else '–'} {name} {installed or 'is not installed'}: {OPTIONAL[name]}"
    yield f"{'✓' if report.browser else '–'} browser: {report.browser or 'none found'}"
    free = f", {cache.free_bytes / gib:.1f} GiB free" if cache.free_bytes is not None else ""
    present = [name for name, there in cache.files.items() if there]
    yield f"cache {cache.folder}{free}: {', '.join(present) or 'no data sets yet'}"
    if report.network is None:
        yield "network: not tried; add --network"
    for host, reachable in (report.network or {}).items():
        yield f"{'✓' if reachable else '–'} {host} {'can' if reachable else 'cannot'} be reached"
