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
    """Request for controls."""

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


def run(workspace: "Workspace", request: ControlsRequest) -> ControlsResult:
    """Compare a run's model with other bases, scrambled weights, random rankings, and parts of ablations.

    Args:
        workspace: A run with its network and data.
        request: Which controls.

    Returns:
        The result, which is stored in the run's folder, if it has one; finished rows survive a kill.

    Raises:
        InterbasisError: A basis is unknown, the network cannot be made again from changed weights, or a
            tolerance cannot be met.
    """
    from interbasis.analysis.ablation.controls import ControlPlan
    from interbasis.analysis.ablation.evaluation import default_metric
    from interbasis.analysis.ablation.search import DEFAULT_TOLERANCE, warn_below_one_sample
    from interbasis.analysis.workspace import collect_records

    with workspace.working("controls"), progress_bar(workspace.progress) as advance:
        data, network = workspace.data(request.data), workspace.network
        used = DataUsed.from_data(data)
        metric = request.metric or default_metric(network)
        if request.stressed and not network.predicts_next:
            tolerance = DEFAULT_TOLERANCE[metric] if request.tolerance is None else request.tolerance
            warn_below_one_sample(metric, tolerance, used.samples)
        fit_data = workspace.data(None, "train")
        planned = dict(ControlPlan(network, fit_data, data, request, workspace.graph.config, advance).rows())
        files = {name: f"row.{number}" for number, name in enumerate(planned)}
        with workspace.unfinished(ControlsResult, request=request, **used.fingerprints) as checkpoints:

            def row(name: str) -> Control:
                def make() -> "State":
                    return {}, planned.pop(name)().model_dump(mode="json")

                return Control.model_validate(checkpoints.remember(files[name], make, name)[1])

            rows = collect_records(workspace.team, list(files), row, Control)
            return workspace.store(ControlsResult(data=used, rows=rows))
