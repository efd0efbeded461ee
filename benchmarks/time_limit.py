"""Wall time of builds that were given a time, from modular addition to a model of 135 M parameters.

    python benchmarks/time_limit.py OUT --data SHARED --models MODELS [--limit 120] [--only NAME]

Each build is a process of its own, five times per model; in the last two of them another process keeps one
processor busy. SHARED holds the data sets and the TinyStories GPT, MODELS holds ``minilm`` and ``smollm2``.
OUT/times.json is written after each build, and an interrupted benchmark resumes.
"""

import json
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from common import machine

REPEATS, BUSY_REPEATS = 5, 2


def builds(shared: Path, models: Path) -> dict[str, list[str]]:
    """Arguments of ``interbasis build`` by the name of the model."""
    gpt, text = shared / "tinystories-gpt-280k", shared / "openwebtext/sample.txt"
    minilm, smollm2 = models / "minilm", models / "smollm2"
    return {
        "modular addition": ["modadd"],
        "CIFAR-10 convolutional": ["cifar10-conv", "--data", f"cifar10:{shared / 'cifar10/cifar10.npz'}"],
        "TinyStories GPT": [f"hf:{gpt}", "--data", f"tokens:{gpt / 'tokens_train.uint16'}"],
        "MiniLM": [f"hf:{minilm}", "--data", f"text:{text},tokenizer={minilm},context=128"],
        "SmolLM2-135M": [f"hf:{smollm2},blocks=14", "--data", f"text:{text},tokenizer={smollm2},context=256"],
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "times.json"
    done = json.loads(file.read_text()) if file.exists() else []
    finished = {(record["model"], record["repeat"]) for record in done}
    for name, arguments in builds(options.data.resolve(), options.models.resolve()).items():
        for repeat in range(REPEATS):
            if (name, repeat) in finished or (options.only and name not in options.only):
                continue
            record = measure(arguments, options.out / "run", options.limit, repeat >= REPEATS - BUSY_REPEATS)
            done.append({"model": name, "repeat": repeat} | record)
            file.write_text(json.dumps(done, indent=1) + "\n")
            print(json.dumps(done[-1]), flush=True)


def measure(arguments: list[str], run: Path, limit: float, busy: bool) -> dict[str, object]:
    """Build once and delete the run; ``busy`` starts a process that computes meanwhile."""
    shutil.rmtree(run, ignore_errors=True)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    load, start = machine()["load before"], time.monotonic()
    command = [sys.executable, "-m", "interbasis", "build", *arguments, "--quiet", "--json"]
    try:
        result = subprocess.run(
            [*command, "--time", f"{limit:g}s", "--out", str(run)], capture_output=True, text=True
        )
    finally:
        if other is not None:
            other.kill()
    wall = time.monotonic() - start
    if result.returncode:
        return {"busy": busy, "load": load, "wall": round(wall, 1), "failed": result.stderr[-400:]}
    shown = json.loads(result.stdout)
    shutil.rmtree(run)
    return {
        "busy": busy, "load": load, "wall": round(wall, 1),
        "phases": round(sum(shown["seconds"].values()), 1),
        "worst layer": max(shown["precision"]["layers"].values()),
        "worst section": max(shown["precision"]["sections"].values()),
    }  # fmt: skip


if __name__ == "__main__":
    main()
