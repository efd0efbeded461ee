"""Ablations: how few edges of every section, and how few nodes of every layer, keep the metric.

Stored as `ablation.json`, with the accepted masks, `edge_mask.SOURCE`, beside it.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from interbasis.analysis.ablation.records import EdgesRequired, NodesRequired
from interbasis.analysis.stored_results import DataUsed, Result, unknown_layer
from interbasis.base.errors import InterbasisError, short_repr
from interbasis.base.progress import Progress, progress_bar
from interbasis.base.records import Metric, NonEmptyNames, Record

if TYPE_CHECKING:
    from torch import Tensor

    from interbasis.analysis.ablation.search import Search
    from interbasis.analysis.workspace import Workspace
    from interbasis.compute.checkpoints import Checkpoints, State
    from interbasis.graph.interaction_graph import InteractionGraph


class AblateRequest(Record):
    """Request for an ablation: its parts, its data, and the change of the metric that is allowed."""

    edges: bool = True
    """Find the edges required."""
    nodes: bool = False
    """Find the nodes required."""
    data: str | None = None
    """Data to evaluate on; default: the test set of what the run was built on."""
    metric: Metric | None = None
    """accuracy or cross_entropy; default: cross_entropy for language models, else accuracy."""
    tolerance: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Largest loss of accuracy, or increase of cross-entropy; default: 0.001 or 0.1."""
    sections: NonEmptyNames | None = None
    """Comma-separated source layers, by our names or TransformerLens'; default: all sections."""
    stable: bool = True
    """Find the count from which every larger one passes, too."""
    intervals: bool = False
    """Add 95 % bootstrap intervals over the samples to the edges required."""
    robust: bool = False
    """Add counts that survive a search for the worst combination of removed edges."""
    level: float = Field(1.0, gt=0, le=1)
    """How far --robust may switch removed edges back on; 1 is fully."""
    all_tokens: bool = False
    """Mask tokens that the build left out, too; default: they stay as they are."""


class AblationResult(Result):
    """Edges and nodes required, by the names of source layers and layers."""

    file: ClassVar[str] = "ablation"
    command: ClassVar[str] = "ablate"

    metric: Metric
    tolerance: float
    baseline: float
    """The metric of the original model."""
    limit: float
    """The metric that a mask has to meet."""
    data: DataUsed
    all_tokens: bool = True
    """Whether masks acted on all tokens; if not, those that the build left out stayed as they are."""
    sections: dict[str, EdgesRequired]
    layers: dict[str, NodesRequired]

    @property
    def counts(self) -> dict[str, int]:
        """Edges required per section."""
        return {name: section.count for name, section in self.sections.items()}

    @property
    def conditions(self) -> tuple[Metric, float, bool, str, str]:
        """Conditions that must agree before counts are compared."""
        return self.metric, self.tolerance, self.all_tokens, self.data.fingerprint, self.data.labels

    def misfit(self, graph: "InteractionGraph") -> str:
        if self.sections and not graph.edges:
            return "sections were ablated, but the graph has no edges"
        ends = dict(pairwise(graph.layer_names))
        for source, section in self.sections.items():
            if section.source != source or section.target != ends.get(source):
                return f"the graph has no section {short_repr(source)} → {short_repr(section.target)}"
        return unknown_layer(self.layers, graph.section_names)


def run(workspace: "Workspace", request: AblateRequest) -> AblationResult:
    """Find edges and nodes required; sections measured before with the same settings stay in the result.

    Args:
        workspace: A run with its network and data.
        request: What to ablate.

    Returns:
        The result, which is stored in the run's folder, if it has one.

    Raises:
        InterbasisError: There are no edges, a section is unknown or unsupported, or no mask can meet the
            tolerance.
    """
    from interbasis.analysis.ablation.evaluation import Evaluation
    from interbasis.analysis.ablation.memory import AblationPlan
    from interbasis.analysis.ablation.search import Search, warn_below_one_sample
    from interbasis.analysis.workspace import collect_records
    from interbasis.data.batches import Batches

    with workspace.working("ablate"):
        graph, names = workspace.graph, workspace.graph.section_names
        chosen = workspace.section_indices(request.sections)  # unknown ones are refused before any work
        data, plan = workspace.data(request.data), None
        if workspace.memory is not None:
            largest = range(len(names)) if request.nodes else chosen
            plan = AblationPlan.within(
                workspace.memory, workspace.network, graph, Batches(data), largest, robust=request.robust
            )
        evaluation = Evaluation(workspace.network, graph, data, request.metric, request.all_tokens, plan)
        search, baseline = Search(evaluation, request.tolerance, request.intervals), evaluation.baseline
        warn_below_one_sample(baseline.metric, search.tolerance, int(baseline.counts.sum()))
        result = AblationResult(
            metric=baseline.metric,
            tolerance=search.tolerance,
            baseline=baseline.value,
            limit=search.limit,
            data=DataUsed.from_data(data),
            all_tokens=evaluation.all_tokens,
            sections={},
            layers={},
        )
        sections, layers, masks = _stored(workspace, result)
        decisive = result.model_dump(include={"metric", "tolerance", "all_tokens"}) | result.data.fingerprints
        if plan is not None:
            decisive["samples_at_once"] = plan.samples
        with (
            workspace.unfinished(AblationResult, request=request, **decisive) as checkpoints,
            progress_bar(workspace.progress) as advance,
        ):
            if request.edges:
                states = _edges(workspace, request, search, checkpoints, advance)
                for name, (tensors, values) in states.items():
                    sections[name] = EdgesRequired.model_validate(values)
                    masks |= {f"{kind}.{name}": tensor for kind, tensor in tensors.items()}
            if request.nodes:
                layers |= collect_records(
                    workspace.team, names,
                    lambda name: search.fewest_nodes(names.index(name), advance, None, checkpoints),
                    NodesRequired,
                )  # fmt: skip
            measured = {
                "sections": {name: sections[name] for name in names if name in sections},
                "layers": {name: layers[name] for name in names if name in layers},
            }
            return workspace.store(result.model_copy(update=measured), masks)


def _edges(
    workspace: "Workspace",
    request: AblateRequest,
    search: "Search",
    checkpoints: "Checkpoints",
    advance: Progress,
) -> "dict[str, State]":
    """Measure the sections that were asked for, each by one process: masks and draws, and the record."""
    from interbasis.analysis.ablation.robust import Attack, RobustSearch

    chosen, team = workspace.section_indices(request.sections), workspace.team
    names, part = workspace.graph.section_names, f".{team.rank}" if team.rank else ""
    search.check_tolerance_is_reachable(chosen[team.rank :: team.size], checkpoints, part)

    def section(name: str) -> "State":
        k = names.index(name)
        edges = search.fewest_edges(k, advance, request.stable, checkpoints)
        tensors = {"edge_mask": edges.mask}
        if edges.draws is not None:
            tensors["count_draws"] = edges.draws
        values = edges.model_dump(mode="json")

        def attack() -> "State":
            attacks = RobustSearch(search.evaluation, k, search.limit, Attack(request.level))
            return {}, attacks.count(edges.count, advance).model_dump()

        if request.robust:
            _, values["robust"] = checkpoints.remember(f"robust.{k}", attack, f"robust edges from {name}")
        return tensors, values

    longest_first = sorted(chosen, key=lambda k: not workspace.network.sections[k].core.mixes_positions)
    collected = team.collect([names[k] for k in longest_first], section)
    return {names[k]: collected[names[k]] for k in chosen}


def _stored(
    workspace: "Workspace", settings: AblationResult
) -> "tuple[dict[str, EdgesRequired], dict[str, NodesRequired], dict[str, Tensor]]":
    """Results stored already, where metric, tolerance, tokens and data are the same."""
    try:
        stored = workspace.stored(AblationResult)
    except InterbasisError:  # damaged, or of another version: this run takes its place
        stored = None
    if stored is None or stored.conditions != settings.conditions:
        return {}, {}, {}
    return dict(stored.sections), dict(stored.layers), workspace.stored_tensors(AblationResult)
