"""The axes of the scoreboard: one parameter is varied at a time, the others keep their defaults."""

from collections.abc import Sequence

from interbasis_studies.known.modular_addition import ModularAdditionSpec
from interbasis_studies.known.planted import PlantedSpec
from interbasis_studies.known.programs import PROGRAMS, PlantedTransformerSpec, ProgramSpec
from interbasis_studies.known.superposition import SuperpositionSpec

Spec = PlantedSpec | PlantedTransformerSpec | ProgramSpec | ModularAdditionSpec | SuperpositionSpec
Values = tuple[tuple[str, Spec], ...]
"""Names of values, each with the network that it makes."""

QUICK_SAMPLES = 1000
COUNTS = (250, 1000, 4000, 16000, 64000)


def _planted(name: str, values: Sequence[float | int | str], **fixed: float | int | str) -> Values:
    return tuple(
        (f"{v:,}" if isinstance(v, int) else f"{v}" if isinstance(v, str) else f"{v:g}",
         PlantedSpec.validated(**fixed, **{name: v}))
        for v in values
    )  # fmt: skip


AXES: dict[str, Values] = {
    "samples": _planted("samples", COUNTS[:-1]),
    "cross-talk": _planted("cross_talk", (0.0, 0.03, 0.1, 0.2, 0.3, 0.6, 1.0)),
    "correlation": _planted("correlation", (0.0, 0.05, 0.1, 0.2, 0.3, 0.6)),
    "mixing": _planted("mixing", ("none", "orthogonal", "general")),
    "correlation with general mixing": _planted("correlation", (0.0, 0.1, 0.3, 0.6), mixing="general"),
    "scale": _planted("scale", (1.0, 10.0, 100.0)),
    "inputs": _planted("inputs", ("normal", "uniform", "laplace", "sparse")),
    "activation": _planted("activation", ("gelu", "relu", "tanh")),
    "depth": _planted("depth", (1, 3, 6)),
    "parts": (
        ("2 of 12", PlantedSpec(parts=2, size=12, hidden=24)),
        ("4 of 6", PlantedSpec()),
        ("8 of 3", PlantedSpec(parts=8, size=3, hidden=6)),
    ),
    "unread directions": _planted("unread", (0, 4, 12)),
    "duplicated part": (("no", PlantedSpec()), ("yes", PlantedSpec(duplicated=True))),
    "features per dimension": _planted(
        "crowding", (1.0, 1.5, 2.0), parts=24, size=1, hidden=4, outputs=1, inputs="sparse"
    ),
    "sequences (planted transformer)": tuple(
        (f"{n:,}", PlantedTransformerSpec(sequences=n)) for n in (30, 300, 1000)
    ),
    "training steps (modular addition)": tuple((f"{n:,}", ModularAdditionSpec(steps=n)) for n in (0, 1250)),
}
"""By name; what a scoreboard scores by default."""

MORE_AXES: dict[str, Values] = {
    "samples up to 64000": _planted("samples", COUNTS),
    "samples at depth 1": _planted("samples", COUNTS[1:], depth=1),
    "samples at depth 6": _planted("samples", COUNTS[1:], depth=6),
    "samples with 2 parts of 12": _planted("samples", COUNTS[1:], parts=2, size=12, hidden=24),
    "samples with 8 parts of 3": _planted("samples", COUNTS[1:], parts=8, size=3, hidden=6),
    "samples with 4 parts of 2": _planted("samples", COUNTS[1:], parts=4, size=2, hidden=4),
    "program": tuple((name, ProgramSpec.validated(program=name)) for name in PROGRAMS),
    "sharpness of sort": tuple(
        (f"{sharpness:g}", ProgramSpec(program="sort", sharpness=sharpness)) for sharpness in (3.0, 6.0, 12.0)
    ),
    "superposition": tuple(
        (f"{c:g} per dimension" + ", some unread" * (u > 0), SuperpositionSpec(crowding=c, unread=u))
        for c in (2.0, 4.0)
        for u in (0.0, 0.15)
    ),
}
"""Scored where they are asked for by name."""

QUICK_AXES: dict[str, Values] = {
    name: tuple(
        (value, spec.model_copy(update={"samples": QUICK_SAMPLES}))
        for value, spec in AXES[name]
        if value in values
    )
    for name, values in {
        "cross-talk": ("0", "0.1", "0.3"),
        "correlation": ("0", "0.1", "0.3"),
        "mixing": ("orthogonal", "general"),
    }.items()
}
"""The same in small."""
