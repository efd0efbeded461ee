"""Curves: the metric at fractions of the edges kept. Stored as `curves.json`."""

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from interbasis.analysis.ablation.records import Curves, Sparsity
from interbasis.analysis.stored_results import DataUsed, Result, unknown_layer
from interbasis.base.records import Metric, Record, require

if TYPE_CHECKING:
    from interbasis.analysis.workspace import Workspace
    from interbasis.compute.checkpoints import Checkpoints, State
    from interbasis.data.batches import Data
    from interbasis.graph.interaction_graph import InteractionGraph


class CurvesRequest(Record):
    """Request for curves: data and metric."""

    data: str | None = None
    """Data to evaluate on; default: the test set of what the run was built on."""
    metric: Metric | None = None
    """accuracy or cross_entropy; default: cross_entropy for language models, else accuracy."""
    seed: int = Field(0, ge=0)
    """Seed of the bootstrap."""
    robust: bool = False
    """Add, per section, the metric with the worst mask found within the edges that are not kept."""


class CurvesResult(Result):
    """Curves of every section and of all at once, with the sparsity of the edges."""

    file: ClassVar[str] = "curves"
    command: ClassVar[str] = "curves"

    data: DataUsed
    curves: Curves
    sparsity: dict[str, Sparsity]
    """Sparsity of every section, by the name of its source layer."""
    worst: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """The metric at each fraction with the worst mask found within the edges left out, by section."""

    @model_validator(mode="after")
    def _check_sparsity_names(self) -> Self:
        require(self.sparsity.keys() >= self.curves.sections.keys(), "the sparsity of a section is missing")
        lengths = {len(values) for values in self.worst.values()}
        require(lengths <= {len(self.curves.fractions)}, "worst lacks the value of a fraction")
        return self

    def misfit(self, graph: "InteractionGraph") -> str:
        return unknown_layer([*self.curves.sections, *self.sparsity, *self.worst], graph.section_names)


def run(workspace: "Workspace", request: CurvesRequest) -> CurvesResult:
    """Measure the curves of a run.

    Args:
        workspace: A run with its network and data.
        request: Metric and data.

    Returns:
        The result, which is stored in the run's folder, if it has one.

    Raises:
        InterbasisError: The graph has no edges.
    """
    from interbasis.analysis.ablation.curves import interaction_sparsity, sparsity_curves

    with workspace.working("curves"):
        data = workspace.data(request.data)
        used = DataUsed.from_data(data)
        with workspace.unfinished(CurvesResult, request=request, **used.fingerprints) as checkpoints:
            curves = sparsity_curves(
                workspace.network, workspace.graph, data, request.metric,
                seed=request.seed, checkpoints=checkpoints, progress=workspace.progress, team=workspace.team,
            )  # fmt: skip
            sparsity = {section.source: section for section in interaction_sparsity(workspace.graph)}
            worst = _worst(workspace, curves, data, checkpoints) if request.robust else {}
            return workspace.store(CurvesResult(data=used, curves=curves, sparsity=sparsity, worst=worst))


def _worst(
    workspace: "Workspace", curves: Curves, data: "Data", checkpoints: "Checkpoints"
) -> dict[str, tuple[float, ...]]:
    """Attacks on what every point of the curves leaves out, section by section."""
    from interbasis.analysis.ablation.evaluation import Evaluation
    from interbasis.analysis.ablation.robust import RobustSearch

    names = list(curves.sections)
    evaluation = Evaluation(workspace.network, workspace.graph, data, curves.metric)

    def section(name: str) -> "State":
        k, counts = names.index(name), curves.sections[name].counts
        search = RobustSearch(evaluation, k, limit=curves.baseline)
        checkpoint = checkpoints.checkpoint(f"worst.{k}", total=len(set(counts)))

        def attack(count: int) -> "State":
            return {}, {"value": search.worst_common(search.mask(count))}

        attacks = [checkpoint.remember(str(count), partial(attack, count)) for count in counts]
        return {}, {"values": [values["value"] for _, values in attacks]}

    collected = workspace.team.collect(names, section)
    return {name: tuple(values["values"]) for name, (_, values) in collected.items()}
