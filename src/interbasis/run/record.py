"""A graph with everything that stages have stored beside it, read without its network or data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load
from interbasis.run.results import Result, load_result, load_tensors
from interbasis.run.stages.ablate import AblationResult
from interbasis.run.stages.controls import ControlsResult
from interbasis.run.stages.curves import CurvesResult
from interbasis.run.stages.features import ExamplesResult, FeaturesResult
from interbasis.run.stages.modules import ModulesResult
from interbasis.runtime.errors import InterbasisError

R = TypeVar("R", bound=Result)


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run. A result that was not made is None."""

    graph: InteractionGraph
    folder: Path | None = None
    ablation: AblationResult | None = None
    edge_masks: dict[str, Tensor] = field(default_factory=dict)
    """The edges required, [features_out, features_in], by the name of the section's source layer."""
    curves: CurvesResult | None = None
    controls: ControlsResult | None = None
    modules: ModulesResult | None = None
    features: FeaturesResult | None = None
    examples: ExamplesResult | None = None
    unreadable: tuple[str, ...] = ()
    """Why results that are there could not be read, a sentence each."""


def read_run(folder: str | Path, *, skip_unreadable: bool = False) -> RunRecord:
    """Read a run and all results of its graph.

    Args:
        folder: Folder of the run.
        skip_unreadable: Leave out results that are damaged or of another version, and say so in the record.

    Returns:
        The record; results of an older graph are not taken for its own.

    Raises:
        InterbasisError: There is no run, or one of its results cannot be read.
    """
    folder = Path(folder)
    reader = _Reader(folder, skip_unreadable)
    graph = load(folder)
    ablation = reader.read(AblationResult)
    return RunRecord(
        graph=graph,
        folder=folder,
        ablation=ablation,
        edge_masks={} if ablation is None else reader.edge_masks(ablation),
        curves=reader.read(CurvesResult),
        controls=reader.read(ControlsResult),
        modules=reader.read(ModulesResult),
        features=reader.read(FeaturesResult),
        examples=reader.read(ExamplesResult),
        unreadable=tuple(reader.problems),
    )


class _Reader:
    def __init__(self, folder: Path, skip_unreadable: bool) -> None:
        self.folder, self.skip_unreadable = folder, skip_unreadable
        self.problems: list[str] = []

    def read(self, kind: type[R]) -> R | None:
        try:
            return load_result(self.folder, kind)
        except InterbasisError as error:
            self._problem(error)
            return None

    def edge_masks(self, ablation: AblationResult) -> dict[str, Tensor]:
        try:
            tensors = load_tensors(self.folder, AblationResult)
        except InterbasisError as error:
            self._problem(error)
            return {}
        return {name: tensors[f"edge_mask.{name}"] for name in ablation.sections}

    def _problem(self, error: InterbasisError) -> None:
        if not self.skip_unreadable:
            raise error
        self.problems.append(str(error))
