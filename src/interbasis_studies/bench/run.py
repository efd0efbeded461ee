"""The whole benchmark: measured part by part, each part kept, so that it resumes."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from interbasis.base.progress import Progress, silent
from interbasis.base.records import Record
from interbasis.compute.checkpoints import Checkpoints, environment, versions
from interbasis_studies.bench.measures import Ratios, autograd_ratios, phase_ratios, rotary_ratios
from interbasis_studies.bench.processes import peak_memory, strong_scaling
from interbasis_studies.bench.records import BenchResult, Machine, Measure, Scaling, Sweep
from interbasis_studies.bench.shapes import FULL, QUICK, Shape
from interbasis_studies.bench.sweeps import FACTORS, LARGE, SMALL, sweep

R = TypeVar("R", bound=Record)
SCALED = Shape(192, 768, 6, positions=128, samples=64, blocks=2)
"""What two processes build together."""
WIDTHS, CONTEXTS, ROTARY_TOKENS = (384, 576), (256, 1024), 2048


class Ratio(Record):
    """Some ratios, to be kept."""

    ratios: dict[str, Measure]


def run(folder: Path, *, quick: bool, scaling: bool, progress: Progress = silent) -> BenchResult:
    """Measure everything.

    Args:
        folder: Where unfinished work is kept; a benchmark that was interrupted resumes there.
        quick: Small shapes, a minute or two; else the shapes of GPT2-small, SmolLM2-135M and Llama-1B.
        scaling: Build with two processes, too, which takes both processors of a machine.
        progress: Told of every part.
    """
    shapes, repeat = (QUICK, 3) if quick else (FULL, 2)
    kept = Checkpoints(folder, "bench", {"quick": quick, **environment()}, restart=True)
    parts: dict[str, Callable[[], Record]] = {}

    def ratios(name: str, work: Callable[[], Ratios]) -> None:
        parts[name] = lambda: Ratio(ratios=work())

    for name, shape in shapes.items():
        ratios(f"phases {name}", lambda n=name, s=shape: phase_ratios(n, s, 1 if not quick else 3))  # type: ignore[misc]
        ratios(f"autograd {name}", lambda n=name, s=shape: autograd_ratios(n, s, repeat))  # type: ignore[misc]
    for width in WIDTHS if not quick else (192,):
        for context in CONTEXTS if not quick else (128,):
            tokens = ROTARY_TOKENS if not quick else 512
            ratios(
                f"rotary {width} {context}",
                lambda w=width, c=context, t=tokens: rotary_ratios(w, c, t, repeat),  # type: ignore[misc]
            )
    for size in FACTORS:
        parts[f"sweep {size}"] = lambda s=size: sweep(SMALL if quick else LARGE, s)  # type: ignore[misc]
    if scaling:
        parts["scaling"] = lambda: strong_scaling(SCALED)
    found: dict[str, Record] = {}
    for number, (name, work) in enumerate(parts.items()):
        found[name] = _kept(kept, name, work, _kind(name))
        progress("benchmark", number + 1, len(parts) + 1)
    peaks = {name: peak_memory(shape) for name, shape in shapes.items()}
    progress("benchmark", len(parts) + 1, len(parts) + 1)
    result = BenchResult(
        quick=quick,
        machine=this_machine(),
        ratios={k: v for one in found.values() if isinstance(one, Ratio) for k, v in one.ratios.items()},
        sweeps={n.removeprefix("sweep "): one for n, one in found.items() if isinstance(one, Sweep)},
        peak_bytes=peaks,
        scaling=next((one for one in found.values() if isinstance(one, Scaling)), None),
    )
    kept.finish()
    return result


def _kind(name: str) -> type[Record]:
    return Scaling if name == "scaling" else Sweep if name.startswith("sweep ") else Ratio


def _kept(checkpoints: Checkpoints, name: str, work: Callable[[], R], kind: type[Record]) -> Record:
    """A part as it was measured before, or measured now."""
    _, values = checkpoints.remember(name.replace(" ", "."), lambda: ({}, {"record": work().to_json()}))
    return kind.model_validate_json(values["record"])


def this_machine() -> Machine:
    return Machine(
        processor=platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        interbasis=versions()["interbasis"],
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    )
