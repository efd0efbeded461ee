"""Builds in processes of their own: peak memory, and two processes beside one."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from interbasis.base.errors import InterbasisError
from interbasis_studies.bench.records import Scaling
from interbasis_studies.bench.shapes import VOCABULARY, Shape

PEAK = """
import json, sys
from interbasis_studies.bench.shapes import Shape
from interbasis.run.build import build
from interbasis.base.memory import peak_bytes
shape = Shape(**json.loads(sys.argv[1]))
build(shape.network(), shape.data(), edge_group="positions", edge_sources=1, progress=False)
print(peak_bytes())
"""
MODEL = """
from interbasis_studies.bench.shapes import Shape
def network():
    return Shape(**{shape}).network()
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def peak_memory(shape: Shape) -> int:
    """The most bytes that a process held that built this and nothing else."""
    return int(_run([sys.executable, "-c", PEAK, json.dumps(vars(shape))]))


def strong_scaling(shape: Shape) -> Scaling:
    """The same build by one process and by two, on the wall, which requires two free processors."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "bench_model.py").write_text(MODEL.format(shape=vars(shape)))
        tokens = np.random.default_rng(1).integers(0, VOCABULARY, (shape.samples, shape.positions))
        np.save(place / "tokens.npy", tokens.astype(np.uint16))
        seconds = []
        for processes in (1, 2):
            launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
            command = [
                *launch, "-m", "interbasis", "build", "python:bench_model:network", "--data",
                f"tokens:tokens.npy,context={shape.positions}", "--out", f"run{processes}", "--edge-group",
                "positions", "--edge-sources", "1",
            ]  # fmt: skip
            start = time.perf_counter()
            _run(command, place)
            seconds.append(time.perf_counter() - start)
    return Scaling(one=seconds[0], two=seconds[1], speedup=seconds[0] / seconds[1])


def _run(command: list[str], folder: Path | None = None) -> str:
    source = str(Path(__file__).parents[2])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | ONE_THREAD | {"PYTHONPATH": path},
    )  # fmt: skip
    if ended.returncode:
        reason = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise InterbasisError(f"a benchmark process ended with exit code {ended.returncode}: {reason}")
    return ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else ""
