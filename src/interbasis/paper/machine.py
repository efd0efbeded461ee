"""The machine that a report is written on, in words."""

import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch


def describe_machine(runs: Iterable[Path]) -> dict[str, Any]:
    """Processor, memory and versions, and with how many threads the runs were built."""
    threads = {number for run in runs if (number := _threads(run)) is not None}
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": " or ".join(map(str, sorted(threads))) or "an unknown number",
    }


def _threads(run: Path) -> int | None:
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    return config["provenance"].get("request", {}).get("threads")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "memory unknown"
    return f"{size / 2**30:.0f} GiB"
