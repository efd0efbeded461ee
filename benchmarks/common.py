"""Timing in one process: same dtype, same threads, same data for everything that is compared."""

import json
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch


def seconds(work: Callable[[], object], repeat: int = 1) -> float:
    """Wall time of one run, the best of ``repeat``."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def peak_gigabytes() -> float:
    """The most memory this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def machine() -> dict[str, object]:
    load = Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "unknown"
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "processor": platform.machine(),
        "load before": load,
    }


def report(name: str, figures: dict[str, object]) -> None:
    """One line per figure for people, and a JSON line at the end for machines."""
    print(f"\n{name}")
    for key, value in figures.items():
        print(f"  {key:<44} {value:.4g}" if isinstance(value, float) else f"  {key:<44} {value}")
    print(json.dumps({"benchmark": name} | figures))
    sys.stdout.flush()
