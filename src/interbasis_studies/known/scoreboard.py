"""The scoreboard: every basis against every axis of networks with known structure, over seeds.

A cell is one network of one seed, with the scores of all bases. It is computed with one thread, so that its
bits do not depend on the machine's cores, and stored as soon as it is known: an interrupted scoreboard
resumes, and several processes may share the cells.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from interbasis.base.errors import InterbasisError
from interbasis.base.files import check_writable, write_text_atomically
from interbasis.base.progress import progress_bar
from interbasis.compute.checkpoints import Checkpoints, State, versions
from interbasis.compute.locks import only_task
from interbasis_studies.known import modular_addition, scoreboard_axes, superposition
from interbasis_studies.known.bases import fit, fit_lib
from interbasis_studies.known.planted import PlantedSpec, plant
from interbasis_studies.known.programs import (
    PlantedTransformerSpec,
    ProgramSpec,
    plant_program,
    plant_transformer,
)
from interbasis_studies.known.records import (
    SCORED,
    Estimate,
    RecoveryScores,
    Row,
    Scoreboard,
    ScoreboardRequest,
    ScoredBasis,
)
from interbasis_studies.known.scoreboard_axes import Spec, Values
from interbasis_studies.known.scores import score
from interbasis_studies.known.superposition import METRICS
from interbasis_studies.known.truth import KnownNetwork, Truth

FILE = "scoreboard.json"


PLANTERS: dict[type[Spec], Callable[..., KnownNetwork]] = {
    PlantedSpec: plant,
    ProgramSpec: plant_program,
    PlantedTransformerSpec: lambda spec, seed: plant_transformer(seed, spec.sequences),
}


@dataclass(frozen=True)
class _Cell:
    """One network of one seed."""

    spec: Spec
    seed: int
    bases: tuple[ScoredBasis, ...]

    @property
    def key(self) -> str:
        text = f"{type(self.spec).__name__} {self.spec.to_json()}"
        return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.{self.seed}"


def run(
    request: ScoreboardRequest, out: Path, progress: bool | None = None, processes: int = 1
) -> Scoreboard:
    """Score all bases at all values of the axes, and write scoreboard.json.

    Args:
        request: Axes, bases and seeds.
        out: The folder; unfinished work is stored there while it lasts.
        progress: Show progress; default: bars on a terminal, else lines.
        processes: Number of networks scored at a time, each with one thread. The result does not depend
            on it.

    Returns:
        The scoreboard.

    Raises:
        InterbasisError: An axis or a basis is unknown, or the folder cannot be written to.
    """
    axes, bases = _chosen(request)
    check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    seeds = range(request.seeds)
    with only_task(out, "scoreboard"):
        settings = request.model_dump() | {"bases": list(bases), **versions()}
        checkpoints = Checkpoints(out, "scoreboard", settings)
        checkpoints.begin()
        specs = [(axis, value, spec) for axis, values in axes.items() for value, spec in values]
        cells = [_Cell(spec, seed, bases) for _, _, spec in specs for seed in seeds]
        by_key = {cell.key: cell for cell in cells}
        scores: dict[str, Mapping[str, RecoveryScores]] = {}
        pool = ProcessPoolExecutor(processes, get_context("spawn")) if processes > 1 else nullcontext()
        with progress_bar(progress) as advance, pool as workers:
            mapping: Callable[..., Iterable[dict[str, RecoveryScores]]] = workers.map if workers else map
            computed = mapping(partial(_stored, checkpoints), by_key.values())
            for key, by_basis in zip(by_key, computed, strict=True):
                scores[key] = by_basis
                advance("networks", len(scores), len(by_key))
        rows = []
        for axis, value, spec in specs:
            over_seeds = [scores[_Cell(spec, seed, bases).key] for seed in seeds]
            for basis in bases:
                if basis in over_seeds[0]:
                    estimates = {
                        name: Estimate.over_seeds([getattr(cell[basis], name) for cell in over_seeds])
                        for name in RecoveryScores.model_fields
                    }
                    rows.append(Row(axis=axis, value=value, basis=basis, scores=estimates))
        board = Scoreboard(request=request, versions=versions(), rows=tuple(rows))
        write_text_atomically(out / FILE, board.to_json(indent=1) + "\n")
        checkpoints.finish()
    return board


def _stored(checkpoints: Checkpoints, cell: _Cell) -> dict[str, RecoveryScores]:
    """The scores of a cell by basis, from what is stored or computed now."""

    def computed() -> State:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with threadpool_limits(1):
                return {}, {basis: json.loads(scores.to_json()) for basis, scores in _scores(cell)}
        finally:
            torch.set_num_threads(threads)

    _, values = checkpoints.remember(cell.key, computed)
    return {name: RecoveryScores(**fields) for name, fields in values.items()}


def _scores(cell: _Cell) -> Iterator[tuple[ScoredBasis, RecoveryScores]]:
    """Scores of all bases that can be scored on this network."""
    spec, seed = cell.spec, cell.seed
    if isinstance(spec, modular_addition.ModularAdditionSpec):
        trained = modular_addition.train_modular_addition(spec, seed)
        known = KnownNetwork(trained.network, trained.training.inputs, Truth((), (), (), ()))
        for basis in cell.bases:
            if basis != "ceiling" and basis not in METRICS:  # nothing was planted, and nothing is sparse
                yield basis, modular_addition.score_modular_addition(trained, fit(known, basis, seed), seed)
        return
    if isinstance(spec, superposition.SuperpositionSpec):
        known = superposition.plant_superposition(spec, seed)
        lib = fit_lib(known, seed)
        for basis in cell.bases:
            if basis in METRICS:
                dictionaries = superposition.train_dictionaries(known, spec, lib, METRICS[basis], seed)
                yield basis, superposition.score_dictionaries(known, dictionaries)
            elif basis != "ceiling":
                graph = fit(known, basis, seed)
                found = superposition.score_basis(known, graph, spec.depth)
                yield basis, score(known, graph, seed).model_copy(update=found)
        return
    known = PLANTERS[type(spec)](spec, seed)
    for basis in cell.bases:
        if basis == "ceiling" and isinstance(spec, PlantedSpec) and spec.crowding > 1:
            continue  # parts that overlap cannot be told apart by any rotation
        if basis not in METRICS:  # these features are not sparse
            yield basis, score(known, fit(known, basis, seed), seed)


def _chosen(request: ScoreboardRequest) -> tuple[dict[str, Values], tuple[ScoredBasis, ...]]:
    usual = scoreboard_axes.QUICK_AXES if request.quick else scoreboard_axes.AXES
    known = usual if request.quick else scoreboard_axes.AXES | scoreboard_axes.MORE_AXES
    for name in request.axes or ():
        if name not in known:
            raise InterbasisError(f"there is no axis {name!r}; expected some of {'; '.join(known)}")
    for name in request.bases or ():
        if name not in SCORED:
            raise InterbasisError(f"there is no basis {name!r}; expected some of {', '.join(SCORED)}")
    axes = {name: known[name] for name in request.axes or usual}
    return axes, tuple(name for name in SCORED if request.bases is None or name in request.bases)
