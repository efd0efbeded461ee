"""The scoreboard: every basis against every knob of planted networks, over seeds.

One knob at a time is turned, the others being at their defaults. A cell is one network of one seed, with the
scores of all bases; it is stored as soon as it is known, so an interrupted scoreboard resumes.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from interbasis.known.bases import fit
from interbasis.known.planted import PlantedSpec, plant
from interbasis.known.records import SCORED, Estimate, Row, Scoreboard, ScoreboardRequest, ScoredBasis, Scores
from interbasis.known.scores import score
from interbasis.runtime.checkpoints import Checkpoints, State, versions
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.files import check_writable, write_text_atomically
from interbasis.runtime.progress import progress_bar

FILE = "scoreboard.json"
Setting = dict[str, float | int | str | bool]
CROWDED: Setting = {"parts": 24, "size": 1, "hidden": 4, "outputs": 1, "inputs": "sparse"}

AXES: dict[str, tuple[tuple[str, Setting], ...]] = {
    "samples": tuple((f"{n:,}", {"samples": n}) for n in (250, 1000, 4000, 16000)),
    "cross-talk": tuple((f"{e:g}", {"cross_talk": e}) for e in (0.0, 0.03, 0.1, 0.3, 0.6, 1.0)),
    "correlation": tuple((f"{r:g}", {"correlation": r}) for r in (0.0, 0.05, 0.1, 0.3, 0.6)),
    "mixing": tuple((name, {"mixing": name}) for name in ("none", "orthogonal", "general")),
    "correlation with general mixing": tuple(
        (f"{r:g}", {"correlation": r, "mixing": "general"}) for r in (0.0, 0.1, 0.3, 0.6)
    ),
    "scale": tuple((f"{s:g}", {"scale": s}) for s in (1.0, 10.0, 100.0)),
    "inputs": tuple((name, {"inputs": name}) for name in ("normal", "uniform", "laplace", "sparse")),
    "activation": tuple((name, {"activation": name}) for name in ("gelu", "relu", "tanh")),
    "depth": tuple((f"{d}", {"depth": d}) for d in (1, 3, 6)),
    "parts": (("2 of 12", {"parts": 2, "size": 12, "hidden": 24}), ("4 of 6", {}),
              ("8 of 3", {"parts": 8, "size": 3, "hidden": 6})),
    "unread directions": tuple((f"{u}", {"unread": u}) for u in (0, 4, 12)),
    "duplicated part": (("no", {}), ("yes", {"duplicated": True})),
    "features per dimension": tuple((f"{c:g}", {**CROWDED, "crowding": c}) for c in (1.0, 1.5, 2.0)),
}  # fmt: skip
"""Knob by knob: (what a value is called, the settings that make it)."""

QUICK_AXES: dict[str, tuple[tuple[str, Setting], ...]] = {
    name: tuple((value, {"samples": 1000, **setting}) for value, setting in AXES[name] if value in values)
    for name, values in {
        "cross-talk": ("0", "0.1", "0.3"),
        "correlation": ("0", "0.1", "0.3"),
        "mixing": ("orthogonal", "general"),
    }.items()
}
"""The same in small."""


def run(request: ScoreboardRequest, out: Path, progress: bool | None = None) -> Scoreboard:
    """Score all bases at all values of the knobs, and write scoreboard.json.

    Args:
        request: What is scored.
        out: The folder; unfinished work is stored there while it lasts.
        progress: Show progress; default: on a terminal only.

    Returns:
        The scoreboard.

    Raises:
        InterbasisError: A knob or a basis is unknown, or the folder cannot be written to.
    """
    axes, bases = _chosen(request)
    check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    settings = request.model_dump() | {"bases": list(bases), **versions()}
    checkpoints = Checkpoints(out, "scoreboard", settings)
    cells = {_key(spec): spec for _, _, spec in _specs(axes)}
    scores: dict[str, list[dict[str, Scores]]] = {}
    with progress_bar(progress) as advance:
        total = len(cells) * request.seeds
        for number, (key, spec) in enumerate(cells.items()):
            for seed in range(request.seeds):
                _, stored = checkpoints.remember(f"{key}.{seed}", partial(_state, spec, seed, bases))
                scores.setdefault(key, []).append({name: Scores(**values) for name, values in stored.items()})
                advance("networks", number * request.seeds + seed + 1, total)
    rows = tuple(
        Row(axis=axis, value=value, basis=basis, scores=_estimates(basis, scores[_key(spec)]))
        for axis, value, spec in _specs(axes)
        for basis in bases
        if basis in scores[_key(spec)][0]
    )
    board = Scoreboard(request=request, versions=versions(), rows=rows)
    write_text_atomically(out / FILE, board.to_json(indent=1) + "\n")
    checkpoints.finish()
    return board


def _estimates(basis: str, over_seeds: Sequence[Mapping[str, Scores]]) -> dict[str, Estimate]:
    return {
        name: Estimate.over_seeds([getattr(cell[basis], name) for cell in over_seeds])
        for name in Scores.model_fields
    }


def _state(spec: PlantedSpec, seed: int, bases: Sequence[ScoredBasis]) -> State:
    return {}, dict(_cell(spec, seed, bases))


def _cell(spec: PlantedSpec, seed: int, bases: Sequence[ScoredBasis]) -> dict[str, dict[str, float | None]]:
    """The scores of all bases for one network, as JSON holds them."""
    known = plant(spec, seed)
    result: dict[str, dict[str, float | None]] = {}
    for basis in bases:
        if basis == "ceiling" and spec.crowding > 1:
            continue  # parts that overlap cannot be told apart by any rotation
        values = score(known, fit(known, basis, seed), seed).model_dump()
        result[basis] = {name: None if math.isnan(value) else value for name, value in values.items()}
    return result


def _chosen(
    request: ScoreboardRequest,
) -> tuple[dict[str, tuple[tuple[str, Setting], ...]], tuple[ScoredBasis, ...]]:
    known = QUICK_AXES if request.quick else AXES
    for name in request.axes or ():
        if name not in known:
            raise InterbasisError(f"there is no knob {name!r}; expected some of {', '.join(known)}")
    for name in request.bases or ():
        if name not in SCORED:
            raise InterbasisError(f"there is no basis {name!r}; expected some of {', '.join(SCORED)}")
    axes = {name: known[name] for name in request.axes or known}
    return axes, tuple(name for name in SCORED if request.bases is None or name in request.bases)


def _specs(axes: Mapping[str, Sequence[tuple[str, Setting]]]) -> Iterator[tuple[str, str, PlantedSpec]]:
    for axis, values in axes.items():
        for value, setting in values:
            yield axis, value, PlantedSpec.of(**setting)


def _key(spec: PlantedSpec) -> str:
    return hashlib.sha256(spec.to_json().encode()).hexdigest()[:16]
