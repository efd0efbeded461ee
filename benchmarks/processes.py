"""How much faster two processes of one thread are than one, on a language model with all its blocks.

    python benchmarks/processes.py --model hf:FOLDER --data tokens:FILE --test tokens:FILE

measures `build` and `ablate` by torchrun with one and with two processes, in turn. Wanted on an idle machine
of at least two cores: build ≥ 1.7 times, ablate ≥ 1.6 times as fast. Starting Python, opening the model and
connecting the processes is measured by itself (the same command on a finished run) and taken off; the whole
times are printed, too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import machine

WANTED = {"build": 1.7, "ablate": 1.6}


def seconds(processes: int, *arguments: object) -> float:
    """Wall time of a command by so many processes of one thread."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        processes,
        "-m",
        "interbasis",
    ]
    began = time.perf_counter()
    done = subprocess.run(
        [*map(str, [*command, *arguments])],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - began


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    build = ["build", options.model, "--data", options.data, "--threads", 1, "--edge-group", 16, "--out"]
    ablate = ["--data", options.test]
    whole: dict[str, list[float]] = {}
    starts: dict[int, list[float]] = {1: [], 2: []}
    for repeat in range(options.repeat):
        for processes in (1, 2):
            run = folder / f"{repeat}-{processes}"
            whole.setdefault(f"build {processes}", []).append(seconds(processes, *build, run))
            starts[processes].append(seconds(processes, *build, run))  # finished: it is opened only
            whole.setdefault(f"ablate {processes}", []).append(seconds(processes, "ablate", run, *ablate))
    result: dict[str, object] = {}
    for name, wanted in WANTED.items():
        one, two = (statistics.median(whole[f"{name} {processes}"]) for processes in (1, 2))
        start_one, start_two = (statistics.median(starts[processes]) for processes in (1, 2))
        result[name] = {
            "seconds by 1 and 2 processes": [round(one, 1), round(two, 1)],
            "of which starting": [round(start_one, 1), round(start_two, 1)],
            "times as fast": round((one - start_one) / (two - start_two), 2),
            "times as fast with starting": round(one / two, 2),
            "wanted": wanted,
        }
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--repeat", type=int, default=3)
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(machine() | measure(parser.parse_args(), Path(place)), indent=2))
