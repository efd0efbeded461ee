"""Processes that torchrun starts, for tests of several."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def torchrun(processes: int, *arguments: object, **options: str) -> subprocess.Popen[str]:
    """Start some processes of one thread each; ``options`` are variables of their environment."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", processes, *arguments]
    return subprocess.Popen(
        [*map(str, command)],
        env=environment | options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], timeout: int = 300) -> str:
    """Its standard output, if all went well."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return out


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes that torchrun has started, as far as they are running."""
    command = ["pgrep", "-P", str(process.pid)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]
