"""The whole benchmark: measured part by part, each part stored, so that it resumes."""

import os
import platform
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import torch

from interbasis.base.progress import Progress, silent
from interbasis.base.records import Record
from interbasis.compute.checkpoints import Checkpoints, State, environment, versions
from interbasis_studies.bench import measures
from interbasis_studies.bench.processes import peak_memory, strong_scaling
from interbasis_studies.bench.records import BenchMachine, BenchResult, Measure, Scaling, Sweep
from interbasis_studies.bench.shapes import FULL, QUICK, Shape

SCALED = Shape(192, 768, 6, positions=128, samples=64, blocks=2)
"""Shape that two processes build together."""
WIDTHS, CONTEXTS, ROTARY_TOKENS = (384, 576), (256, 1024), 2048


class RatioPart(Record):
    """Ratios of one part, as they are stored."""

    ratios: dict[str, Measure]


def run(folder: Path, *, quick: bool, scaling: bool, progress: Progress = silent) -> BenchResult:
    """Measure everything.

    Args:
        folder: Folder of unfinished work; a benchmark that was interrupted resumes there.
        quick: Small shapes, a minute or two; else the shapes of GPT2-small, SmolLM2-135M and Llama-1B.
        scaling: Build with two processes, too, which takes both processors of a machine.
        progress: Called with (phase, done, total).
    """
    shapes, repeat = (QUICK, 3) if quick else (FULL, 2)
    checkpoints = Checkpoints(folder, "bench", {"quick": quick, **environment()}, restart=True)
    parts: dict[str, Callable[[], Record]] = {}

    def ratios(name: str, work: Callable[[], measures.Ratios]) -> None:
        parts[name] = lambda: RatioPart(ratios=work())

    for name, shape in shapes.items():
        ratios(f"phases {name}", partial(measures.phase_ratios, name, shape, 3 if quick else 1))
        ratios(f"autograd {name}", partial(measures.autograd_ratios, name, shape, repeat))
        ratios(f"dictionaries {name}", partial(measures.dictionary_ratios, name, shape, repeat))
        if not quick:
            ratios(f"error {name}", partial(measures.error_ratios, name, shape))
    tokens = 512 if quick else ROTARY_TOKENS
    for width, context in product((192,), (128,)) if quick else product(WIDTHS, CONTEXTS):
        ratios(f"rotary {width} {context}", partial(measures.rotary_ratios, width, context, tokens, repeat))
    for size in measures.FACTORS:
        parts[f"sweep {size}"] = partial(measures.sweep, measures.SMALL if quick else measures.LARGE, size)
    if scaling:
        parts["scaling"] = partial(strong_scaling, SCALED)
    results: dict[str, Record] = {}
    for number, (name, work) in enumerate(parts.items()):
        kind = Scaling if name == "scaling" else Sweep if name.startswith("sweep ") else RatioPart
        _, values = checkpoints.remember(name.replace(" ", "."), partial(_measured, work))
        results[name] = kind.model_validate_json(values["record"])
        progress("benchmark", number + 1, len(parts) + 1)
    peaks = {name: peak_memory(shape) for name, shape in shapes.items()}
    progress("benchmark", len(parts) + 1, len(parts) + 1)
    result = BenchResult(
        quick=quick,
        machine=BenchMachine(
            processor=platform.processor() or platform.machine(),
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            interbasis=versions()["interbasis"],
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        ),
        ratios={k: v for r in results.values() if isinstance(r, RatioPart) for k, v in r.ratios.items()},
        sweeps={n.removeprefix("sweep "): r for n, r in results.items() if isinstance(r, Sweep)},
        peak_bytes=peaks,
        scaling=next((r for r in results.values() if isinstance(r, Scaling)), None),
    )
    checkpoints.finish()
    return result


def _measured(work: Callable[[], Record]) -> State:
    return {}, {"record": work().to_json()}
