"""The machine that a report is written on, in words."""

import os
import platform
from pathlib import Path

import torch

from interbasis_studies.paper.records import Machine


def describe_machine() -> Machine:
    """Processor, memory and versions."""
    affinity = hasattr(os, "sched_getaffinity")
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1,
        memory=_memory(),
        system=platform.system(),
        python=platform.python_version(),
        torch=torch.__version__,
    )


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
