"""Controls: what else would look as sparse? Stored as `controls.json`."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from interbasis.analysis.ablation.records import Control
from interbasis.analysis.stored_results import DataUsed, Result
from interbasis.base.errors import short_repr
from interbasis.base.progress import progress_bar
from interbasis.base.records import Metric, Names, NonEmptyNames, Record

if TYPE_CHECKING:
    from interbasis.analysis.workspace import Workspace
    from interbasis.compute.checkpoints import State
    from interbasis.graph.interaction_graph import InteractionGraph


class ControlsRequest(Record):
    """Which controls are made."""

    data: str | None = None
    """Data to evaluate on; default: the test set of what the run was built on."""
    metric: Metric | None = None
    """accuracy or cross_entropy; default: cross_entropy for language models, else accuracy."""
    tolerance: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Tolerance for the edges required; default: 0.001 for accuracy, 0.1 for cross-entropy."""
    seed: int = Field(0, ge=0)
    """Random seed."""
    bases: NonEmptyNames = ("lib", "gib", "pca", "neuron", "random")
    """Comma-separated bases; the first is also measured with random rankings and scrambled weights."""
    stressed: Names = ("lib", "pca")
    """Comma-separated bases that also get edges required and subsets of removed edges; "" for none."""
    scrambles: int = Field(1, ge=0)
    """Networks with shuffled weights, and as many with redrawn ones; consecutive seeds from --seed."""


class ControlsResult(Result):
    """The table of controls, by the names of its rows."""

    file: ClassVar[str] = "controls"
    command: ClassVar[str] = "controls"

    data: DataUsed
    rows: dict[str, Control]

    def misfit(self, graph: "InteractionGraph") -> str:
        sections = set(graph.section_names)
        for name, row in self.rows.items():
            known = row.stress.keys() <= row.required.keys() <= sections
            if not known or row.curves.sections.keys() != sections:
                return f"the control {short_repr(name)} is not about the graph's sections"
        return ""


def run(opened: "Workspace", request: ControlsRequest) -> ControlsResult:
    """Compare a run's model with other bases, scrambled weights, random rankings, and parts of ablations.

    Args:
        opened: A run with its network and data.
        request: Which controls.

    Returns:
        The result, which is stored in the run's folder, if it has one; finished rows survive a kill.

    Raises:
        InterbasisError: A basis is unknown, the network cannot be made again from changed weights, or a
            tolerance cannot be met.
    """
    with opened.working("controls"):
        return _run(opened, request)


def _run(opened: "Workspace", request: ControlsRequest) -> ControlsResult:
    from interbasis.analysis.ablation.controls import ControlPlan, ControlSettings
    from interbasis.analysis.ablation.evaluation import default_metric
    from interbasis.analysis.ablation.search import DEFAULT_TOLERANCE, ToleranceError, warn_below_one_sample

    data = opened.data(request.data)
    used = DataUsed.from_data(data)
    settings = ControlSettings(
        bases=request.bases,  # type: ignore[arg-type]  # checked there
        stressed=request.stressed,  # type: ignore[arg-type]
        tolerance=request.tolerance,
        scrambles=request.scrambles,
        build=opened.graph.config.model_copy(update={"seed": request.seed}),
    )
    metric = request.metric or default_metric(opened.network)
    if request.stressed and not opened.network.predicts_next:
        tolerance = DEFAULT_TOLERANCE[metric] if request.tolerance is None else request.tolerance
        warn_below_one_sample(metric, tolerance, used.samples)
    plan = ControlPlan(opened.network, opened.data(None, "train"), data, request.metric, settings)
    checkpoints = opened.checkpoints("controls", request, fingerprint=used.fingerprint, labels=used.labels)
    with progress_bar(opened.progress) as advance:
        planned = dict(plan.rows(advance))
        numbers = {name: number for number, name in enumerate(planned)}

        def row(name: str) -> "State":
            try:
                return checkpoints.remember(
                    f"row.{numbers[name]}", lambda: ({}, planned.pop(name)().model_dump(mode="json")), name
                )
            except ToleranceError:
                checkpoints.finish()  # nothing can be resumed
                raise

        states = opened.team.collect(list(numbers), row)
    rows = {name: Control.model_validate(values) for name, (_, values) in states.items()}
    result = ControlsResult(data=used, rows=rows)
    opened.store(result)
    opened.finish(checkpoints, result.file)
    return result
