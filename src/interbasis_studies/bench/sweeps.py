"""Growth of times with one size while all others stay."""

from dataclasses import replace

import torch

from interbasis.run.build import build
from interbasis_studies.bench.measures import PHASES, forward_time
from interbasis_studies.bench.records import Sweep
from interbasis_studies.bench.shapes import Shape

SMALL = Shape(64, 256, 4, positions=64, samples=16)
LARGE = Shape(256, 1024, 4, positions=128, samples=16)
FACTORS = {
    "tokens": (1, 2, 4),
    "width": (1, 2, 3),
    "context": (1, 2, 4),
    "heads": (1, 2, 4),
    "depth": (1, 2, 3),
}


FIELDS = {
    "tokens": ("samples",),
    "width": ("width", "hidden"),
    "context": ("positions",),
    "heads": ("heads",),
    "depth": ("blocks",),
}
"""Fields of a shape that grow with a size."""


def grown(shape: Shape, size: str, factor: int) -> tuple[int, Shape]:
    """The size, and the shape in which it is ``factor`` times as large."""
    larger = replace(shape, **{field: factor * getattr(shape, field) for field in FIELDS[size]})
    if size == "context":
        larger = replace(larger, samples=max(1, shape.samples // factor))
    return larger.tokens if size == "tokens" else getattr(larger, FIELDS[size][0]), larger


def sweep(shape: Shape, size: str) -> Sweep:
    """Builds with one size growing; the number of tokens stays while the context grows."""
    sizes: list[int] = []
    seconds: dict[str, list[float]] = {phase: [] for phase in ("forward", *PHASES)}
    for factor in FACTORS[size]:
        value, larger = grown(shape, size, factor)
        network, tokens = larger.network(), larger.data()
        sizes.append(value)
        seconds["forward"].append(forward_time(network, tokens).value)
        graph = build(network, tokens, edge_group="positions", edge_sources=1, progress=False).graph
        for phase in PHASES:
            seconds[phase].append(graph.provenance.processor_timings.get(phase, 0.0))
    return Sweep(
        sizes=tuple(sizes),
        seconds={phase: tuple(times) for phase, times in seconds.items()},
        exponents={phase: exponent(sizes, times) for phase, times in seconds.items()},
    )


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of the straight line through the logarithms, by least squares."""
    x, y = (torch.tensor(v, dtype=torch.float64).clamp_min(1e-9).log() for v in (sizes, seconds))
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))
