"""A graph with everything that stages have stored beside it, read without its network or data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.controls import ControlsResult
from interbasis.analysis.stages.curves import CurvesResult
from interbasis.analysis.stages.features import ExamplesResult, FeaturesResult
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stages.trace import TraceResult
from interbasis.analysis.stored_results import Result, load_named, load_result, load_tensors, names_of
from interbasis.base.errors import InterbasisError
from interbasis.graph.companions import Companion, companion
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import load

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
    traces: dict[str, TraceResult] = field(default_factory=dict)
    """By name; those that were asked for."""
    traces_left_out: int = 0
    """Older traces that were not read."""
    unreadable: tuple[str, ...] = ()
    """Why results that are there could not be read, a sentence each."""


def read_run(
    folder: str | Path,
    *,
    skip_unreadable: bool = False,
    max_traces: int | None = None,
    graph: InteractionGraph | None = None,
) -> RunRecord:
    """Read a run and all results of its graph.

    Args:
        folder: Folder of the run.
        skip_unreadable: Leave out results that are damaged or of another version, and say so in the record.
        max_traces: Read so many traces, the newest, and only count the older ones; default: all.
        graph: The graph that was loaded from the folder or saved to it; default: it is loaded now.

    Returns:
        The record; results of an older graph are not taken for its own.

    Raises:
        InterbasisError: There is no run, or one of its results cannot be read.
    """
    folder = Path(folder)
    graph = load(folder) if graph is None else graph
    reader = _Reader(folder, graph, skip_unreadable)
    names = names_of(folder, TraceResult)
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
        traces=reader.traces(names[:max_traces]),
        traces_left_out=len(names[len(names) if max_traces is None else max_traces :]),
        unreadable=tuple(reader.problems),
    )


def record_of(graph: InteractionGraph, max_traces: int | None = None) -> RunRecord:
    """A graph with its results: those of the folder it is stored in, or those that are kept in memory."""
    kept = companion(graph)
    if kept.folder is not None and kept.folder.is_dir():
        return read_run(kept.folder, skip_unreadable=True, max_traces=max_traces, graph=graph)
    ablation = _kept(kept, AblationResult)
    masks = kept.tensors.get(AblationResult.file, {})
    return RunRecord(
        graph=graph,
        ablation=ablation,
        edge_masks={}
        if ablation is None
        else {name: masks[f"edge_mask.{name}"] for name in ablation.sections},
        curves=_kept(kept, CurvesResult),
        controls=_kept(kept, ControlsResult),
        modules=_kept(kept, ModulesResult),
        features=_kept(kept, FeaturesResult),
        examples=_kept(kept, ExamplesResult),
        traces={one.name: one for one in kept.results.values() if isinstance(one, TraceResult)},
    )


def _kept(kept: Companion, kind: type[R]) -> R | None:
    result = kept.results.get(kind.file)
    return result if isinstance(result, kind) else None


class _Reader:
    def __init__(self, folder: Path, graph: InteractionGraph, skip_unreadable: bool) -> None:
        self.folder, self.graph, self.skip_unreadable = folder, graph, skip_unreadable
        self.problems: list[str] = []

    def read(self, kind: type[R]) -> R | None:
        try:
            return load_result(self.folder, kind, self.graph)
        except InterbasisError as error:
            self._problem(error)
            return None

    def traces(self, names: list[str]) -> dict[str, TraceResult]:
        return load_named(self.folder, TraceResult, names, self.graph, self._problem)

    def edge_masks(self, ablation: AblationResult) -> dict[str, Tensor]:
        try:
            tensors = load_tensors(self.folder, AblationResult, self.graph)
            return {name: self._edge_mask(tensors, name) for name in ablation.sections}
        except InterbasisError as error:
            self._problem(error)
            return {}

    def _edge_mask(self, tensors: dict[str, Tensor], section: str) -> Tensor:
        mask = tensors.get(f"edge_mask.{section}")
        expected = self.graph.edges[self.graph.section_names.index(section)].shape
        if mask is None or mask.shape != expected:
            received = "is missing" if mask is None else f"has shape {list(mask.shape)}"
            raise InterbasisError(
                f"{self.folder / AblationResult.file}.safetensors is damaged: the mask of the section from "
                f"{section!r} {received}, expected {list(expected)}; {AblationResult.remedy(self.folder)}"
            )
        return mask

    def _problem(self, error: InterbasisError) -> None:
        if not self.skip_unreadable:
            raise error
        self.problems.append(str(error))
