"""Planned over measured processor time, on builds that nothing was fitted to, at one thread.

python benchmarks/plan.py OUT.json    resumes where it was interrupted
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from interbasis.graph.settings import BuildConfig
from interbasis.lib.build import with_network_defaults
from interbasis.lib.build_data import BuildData
from interbasis.lib.plan import make_plan
from interbasis.run.build import build
from interbasis_studies.bench.shapes import Shape

BUILDS = {
    "GPT-2, 320 wide, 2 blocks": Shape(320, 1280, 5, blocks=2, positions=192, samples=48),
    "GPT-2, 512 wide": Shape(512, 2048, 8, positions=320, samples=32),
    "GPT-2, 640 wide": Shape(640, 2560, 10, positions=128, samples=64),
    "Llama, 320 wide, 2 blocks": Shape(320, 896, 5, 5, blocks=2, positions=256, samples=40),
    "Llama, 512 wide, shared keys": Shape(512, 1408, 8, 2, positions=192, samples=48),
    "Llama, 640 wide": Shape(640, 1728, 10, 5, positions=384, samples=24),
}
"""Written down before any of them was measured."""
ERROR = 0.1


def main(file: Path) -> None:
    done = json.loads(file.read_text()) if file.exists() else {}
    for name, shape in BUILDS.items():
        if name in done:
            continue
        network, tokens = shape.network(), shape.data()
        config = with_network_defaults(network, BuildConfig())
        plan = make_plan(name, network.to(config.torch_dtype), BuildData.from_data(tokens), config)
        choice = plan.targets[ERROR]
        settings: dict[str, Any] = choice.settings
        graph = build(network, tokens, progress=False, **settings).graph
        timings = {
            phase: t for phase, t in graph.provenance.processor_timings.items() if phase != "fingerprints"
        }
        measured, planned = sum(timings.values()), choice.seconds.processor
        done[name] = {
            "tokens": shape.tokens, "planned": round(planned, 2), "measured": round(measured, 2),
            "ratio": round(planned / measured, 2), "settings": choice.settings,
            "phases": {phase: round(t, 2) for phase, t in timings.items()},
        }  # fmt: skip
        file.write_text(json.dumps(done, indent=1) + "\n")
        print(
            f"{name}: planned {planned:.1f} s, measured {measured:.1f} s, {planned / measured:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
