"""A graph with everything that stages have stored beside it, read without its network or data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from interbasis.analysis.differences.records import Difference
from interbasis.analysis.differences.store import stored_differences
from interbasis.analysis.shown_labels import LabelsResult
from interbasis.analysis.stages.ablate import AblationResult
from interbasis.analysis.stages.controls import ControlsResult
from interbasis.analysis.stages.curves import CurvesResult
from interbasis.analysis.stages.features import ExamplesResult, FeaturesResult
from interbasis.analysis.stages.intervene import InterventionResult
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stages.steer import SteerResult
from interbasis.analysis.stages.trace import TraceResult
from interbasis.analysis.stored_results import Result, is_outdated, load_named, result_names
from interbasis.analysis.workspace import Workspace
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.store import graph_digest, load_identified

R = TypeVar("R", bound=Result)

MEASURED: tuple[type[Result], ...] = (
    AblationResult, CurvesResult, ControlsResult, ModulesResult, FeaturesResult, TraceResult, SteerResult,
    InterventionResult,
)  # fmt: skip
"""Results that are measured on a graph."""


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run. A result that was not made is None."""

    graph: InteractionGraph
    folder: Path | None = None
    digest: str | None = None
    """SHA-256 of the graph's tensors in the folder."""
    ablation: AblationResult | None = None
    edge_masks: dict[str, Tensor] = field(default_factory=dict)
    """The edges required, [features_out, features_in], by the name of the section's source layer."""
    curves: CurvesResult | None = None
    controls: ControlsResult | None = None
    modules: ModulesResult | None = None
    features: FeaturesResult | None = None
    examples: ExamplesResult | None = None
    labels: LabelsResult | None = None
    """Descriptions of features that were shown and are not among ``features``."""
    traces: dict[str, TraceResult] = field(default_factory=dict)
    """Traces that were asked for, by name."""
    steers: dict[str, SteerResult] = field(default_factory=dict)
    """Changes of features, by the name that they are stored under."""
    interventions: dict[str, InterventionResult] = field(default_factory=dict)
    """Features that were set over labelled data, likewise."""
    traces_left_out: int = 0
    """Older traces that were not read."""
    differences: dict[str, Difference] = field(default_factory=dict)
    """Differences between its model and others, by name."""
    outdated: tuple[str, ...] = ()
    """Commands whose results in the folder were measured on an older graph, and are left out."""
    unreadable: tuple[str, ...] = ()
    """Why results that are there could not be read, a sentence each."""


def read_run(
    folder: str | Path, *, skip_unreadable: bool = False, max_traces: int | None = None
) -> RunRecord:
    """Read a run and all results of its graph; `read_results` with the graph in a folder."""
    graph, digest = load_identified(folder)
    workspace = Workspace(graph=graph, folder=Path(folder), digest=digest)
    return read_results(workspace, skip_unreadable=skip_unreadable, max_traces=max_traces)


def read_results(
    run: Workspace, *, skip_unreadable: bool = False, max_traces: int | None = None
) -> RunRecord:
    """Read all results of a graph, stored or in memory.

    Args:
        run: The graph and the place of its results.
        skip_unreadable: Leave out results that are damaged or of another version, and say so in the record.
        max_traces: Read so many traces, the newest, and only count the older ones; default: all.

    Returns:
        The record; results of an older graph in the same folder are left out.

    Raises:
        InterbasisError: One of the results cannot be read.
    """
    problems: list[str] = []

    def report(error: InterbasisError) -> None:
        if not skip_unreadable:
            raise error
        problems.append(str(error))

    def read(kind: type[R]) -> R | None:
        try:
            return run.stored(kind)
        except InterbasisError as error:
            report(error)
            return None

    ablation, masks = read(AblationResult), {}
    try:
        masks = {} if ablation is None else _edge_masks(run, ablation)
    except InterbasisError as error:
        report(error)

    def several(kind: type[R], names: Sequence[str] | None = None) -> dict[str, R]:
        if run.folder is None:
            return {stem: result for stem, result in run.results.items() if isinstance(result, kind)}
        return load_named(run.folder, kind, names, run.graph, run.digest, report)

    names = [] if run.folder is None else result_names(run.folder, TraceResult)
    traces = several(TraceResult, names[:max_traces])
    if run.folder is None:
        traces = {result.name: result for result in traces.values()}
    return RunRecord(
        graph=run.graph,
        folder=run.folder,
        digest=run.digest,
        ablation=ablation,
        edge_masks=masks,
        curves=read(CurvesResult),
        controls=read(ControlsResult),
        modules=read(ModulesResult),
        features=read(FeaturesResult),
        examples=read(ExamplesResult),
        labels=read(LabelsResult),
        traces=traces,
        steers=several(SteerResult),
        interventions=several(InterventionResult),
        traces_left_out=len(names[len(names) if max_traces is None else max_traces :]),
        differences=_differences(run, report),
        outdated=() if run.folder is None else outdated_results(run.folder, run.digest),
        unreadable=tuple(problems),
    )


def outdated_results(folder: Path, digest: str | None = None) -> tuple[str, ...]:
    """Commands whose results in a run's folder were measured on an older graph than the run's."""
    graph = digest or graph_digest(folder)
    return tuple(kind.command for kind in MEASURED if is_outdated(folder, kind, graph))


def _differences(run: Workspace, report: Callable[[InterbasisError], None]) -> dict[str, Difference]:
    """Stored differences between the run's model and others."""
    found = {} if run.folder is None else stored_differences(run.folder, report)
    model = run.graph.provenance.model_fingerprint
    return {name: difference for name, difference in found.items() if difference.first.fingerprint == model}


def _edge_masks(run: Workspace, ablation: AblationResult) -> dict[str, Tensor]:
    tensors, masks = run.stored_tensors(AblationResult), {}
    for section in ablation.sections:
        mask = tensors.get(f"edge_mask.{section}")
        expected = run.graph.edges[run.graph.section_names.index(section)].shape
        if mask is None or mask.shape != expected:
            folder = run.folder or Path(".")
            received = "is missing" if mask is None else f"has shape {list(mask.shape)}"
            raise InterbasisError(
                f"{folder / AblationResult.file}.safetensors is damaged: the mask of the section from "
                f"{section!r} {received}, expected {list(expected)}; {AblationResult.remedy(folder)}"
            )
        masks[section] = mask
    return masks
