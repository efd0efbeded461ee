"""`interbasis doctor`: what is installed, and what can be used here."""

import importlib.util
import os
import platform
import shutil
import socket
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from cyclopts import Parameter

from interbasis.cli import common

OPTIONAL = {
    "transformers": "language models by name or folder (hf:…)",
    "tokenizers": "text with a tokenizer (text:…)",
    "huggingface_hub": "models and data sets of the Hugging Face Hub",
    "pyarrow": "parquet files",
    "leidenalg": "modules by leidenalg; without it the built-in Leiden is used",
    "yaml": "configs in YAML",
    "playwright": "pictures of the page in a browser",
}
PACKAGES = {"yaml": "PyYAML"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def doctor(
    *,
    network: Annotated[
        bool, Parameter(help="Try to reach the homes of the data sets.", negative="", show_default=False)
    ] = False,
    as_json: common.AsJson = False,
) -> None:
    """Say what is installed and what can be used here. Nothing is contacted unless asked for.

    Example: interbasis doctor --network
    """
    import torch

    from interbasis.data.cifar10 import ARCHIVE
    from interbasis.data.download import cache_folder
    from interbasis.data.mnist import FILES

    cache = cache_folder()
    remotes = [ARCHIVE, *FILES["train"], *FILES["test"]]
    report: dict[str, Any] = {
        "interbasis": version("interbasis"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cuda": torch.cuda.is_available(),
        "memory": _memory(),
        "packages": {name: _installed(name) for name in OPTIONAL},
        "browser": next((path for name in BROWSERS if (path := shutil.which(name))), None),
        "cache": {
            "folder": str(cache),
            "free_bytes": _free(cache),
            "files": {remote.name: (cache / remote.name).is_file() for remote in remotes},
        },
    }
    if network:
        report["network"] = {home: _reachable(home) for home in _homes(remotes)}
    common.show(report, as_json, _lines)


def _installed(name: str) -> str | None:
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return version(PACKAGES.get(name, name))
    except PackageNotFoundError:
        return "installed"


def _memory() -> dict[str, int]:
    """Bytes in all and bytes that are free, where the system tells."""
    try:
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file)
        kib = {
            name: int(rows[key].split()[0]) for name, key in (("total", "MemTotal"), ("free", "MemAvailable"))
        }
        return {name: 1024 * size for name, size in kib.items()}
    except (OSError, KeyError, ValueError):
        return {}


def _free(folder: os.PathLike) -> int | None:
    """Free bytes where the folder is, or would be."""
    from pathlib import Path

    place = Path(folder)
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def _homes(remotes: list[Any]) -> list[str]:
    from urllib.parse import urlsplit

    hosts = [urlsplit(home).hostname or "" for remote in remotes for home in remote.homes]
    return list(dict.fromkeys([*hosts, "huggingface.co"]))


def _reachable(host: str) -> bool:
    try:
        with socket.create_connection((host, 443), timeout=5):
            return True
    except OSError:
        return False


def _lines(report: dict[str, Any]) -> Iterator[str]:
    gib = 2**30
    memory = report["memory"]
    yield f"interbasis {report['interbasis']} · Python {report['python']} · {report['system']}"
    yield (
        f"torch {report['torch']} · {report['threads']} threads of {report['processors']} processors · "
        f"{'CUDA' if report['cuda'] else 'no CUDA'}"
        + (f" · {memory['free'] / gib:.1f} of {memory['total'] / gib:.1f} GiB memory free" if memory else "")
    )
    for name, found in report["packages"].items():
        yield f"{'✓' if found else '–'} {name} {found or 'is not installed'}: {OPTIONAL[name]}"
    yield f"{'✓' if report['browser'] else '–'} browser: {report['browser'] or 'none found'}"
    cache = report["cache"]
    free = f", {cache['free_bytes'] / gib:.1f} GiB free" if cache["free_bytes"] is not None else ""
    there = [name for name, found in cache["files"].items() if found]
    yield f"cache {cache['folder']}{free}: {', '.join(there) or 'no data sets yet'}"
    if "network" not in report:
        yield "network: not tried; add --network"
    for home, found in report.get("network", {}).items():
        yield f"{'✓' if found else '–'} {home} {'can' if found else 'cannot'} be reached"
