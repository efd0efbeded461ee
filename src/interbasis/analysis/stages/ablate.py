"""Ablations: how few edges of every section, and how few nodes of every layer, keep the metric.

Stored as `ablation.json`, with the accepted masks, `edge_mask.SOURCE`, beside it.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pydantic import Field

from interbasis.analysis.ablation.records import EdgesRequired, NodesRequired, RobustCount
from interbasis.analysis.stored_results import DataUsed, Result, unknown_layer
from interbasis.base.errors import InterbasisError, short_repr
from interbasis.base.progress import Progress, progress_bar
from interbasis.base.records import Metric, NonEmptyNames, Record

if TYPE_CHECKING:
    from torch import Tensor

    from interbasis.analysis.ablation.memory import AblationPlan
    from interbasis.analysis.ablation.search import Search
    from interbasis.analysis.workspace import Workspace
    from interbasis.compute.checkpoints import Checkpoints, State
    from interbasis.data.batches import Data
    from interbasis.graph.interaction_graph import InteractionGraph


class AblateRequest(Record):
    """What is to be ablated, and how much the metric may change."""

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


class Conditions(NamedTuple):
    """Conditions that edges and nodes were counted under; only counts of equal conditions can be compared."""

    metric: Metric
    tolerance: float
    all_tokens: bool
    inputs: str
    """SHA-256 of the inputs."""
    labels: str


class AblationResult(Result):
    """Edges and nodes required, by the names of source layers and layers."""

    file: ClassVar[str] = "ablation"
    command: ClassVar[str] = "ablate"

    metric: Metric
    tolerance: float
    baseline: float
    """The metric of the untouched model."""
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
    def conditions(self) -> "Conditions":
        """Conditions that must agree before counts are compared."""
        return Conditions(
            self.metric, self.tolerance, self.all_tokens, self.data.fingerprint, self.data.labels
        )

    def misfit(self, graph: "InteractionGraph") -> str:
        if self.sections and not graph.edges:
            return "sections were ablated, but the graph has no edges"
        ends = dict(pairwise(graph.layer_names))
        for source, section in self.sections.items():
            if section.source != source or section.target != ends.get(source):
                return f"the graph has no section {short_repr(source)} → {short_repr(section.target)}"
        return unknown_layer(self.layers, graph.section_names)


def run(opened: "Workspace", request: AblateRequest) -> AblationResult:
    """Find edges and nodes required; sections measured before with the same settings stay in the result.

    Args:
        opened: A run with its network and data.
        request: What to ablate.

    Returns:
        The result, which is stored in the run's folder, if it has one.

    Raises:
        InterbasisError: There are no edges, a section is unknown or unsupported, or no mask can meet the
            tolerance.
    """
    with opened.working("ablate"):
        return _run(opened, request)


def _run(opened: "Workspace", request: AblateRequest) -> AblationResult:
    from interbasis.analysis.ablation.evaluation import Evaluation
    from interbasis.analysis.ablation.search import Search, check_has_edges

    chosen = opened.section_indices(request.sections)  # unknown ones are refused before anything is computed
    check_has_edges(opened.graph)
    _check_robust(opened, request, chosen)
    data = opened.data(request.data)
    plan = _plan(opened, request, data, chosen)
    evaluation = Evaluation(opened.network, opened.graph, data, request.metric, request.all_tokens, plan)
    search = Search.from_evaluation(evaluation, request.tolerance)
    search.warn_below_one_sample()
    search = search.with_intervals() if request.intervals else search
    result = AblationResult(
        metric=search.evaluation.metric,
        tolerance=search.tolerance,
        baseline=search.evaluation.baseline.value,
        limit=search.limit,
        data=DataUsed.from_data(data),
        all_tokens=search.evaluation.all_tokens,
        sections={},
        layers={},
    )
    sections, layers, masks = _stored(opened, result)
    decisive = result.model_dump(include={"metric", "tolerance", "all_tokens"})
    decisive |= {"fingerprint": result.data.fingerprint, "labels": result.data.labels}
    if plan is not None:
        decisive["samples_at_once"] = plan.samples
    checkpoints = opened.checkpoints("ablation", request, **decisive)
    with progress_bar(opened.progress) as advance:
        if request.edges:
            for name, (tensors, values) in _edges(opened, request, search, checkpoints, advance).items():
                sections[name] = EdgesRequired.model_validate(values)
                masks |= {f"{kind}.{name}": tensor for kind, tensor in tensors.items()}
        if request.nodes:
            for name, (_, values) in _nodes(opened, search, checkpoints, advance).items():
                layers[name] = NodesRequired.model_validate(values)
    result = result.model_copy(
        update={
            "sections": {name: sections[name] for name in opened.graph.section_names if name in sections},
            "layers": {name: layers[name] for name in opened.graph.section_names if name in layers},
        }
    )
    opened.store(result, masks)
    opened.finish(checkpoints, result.file)
    return result


def _check_robust(opened: "Workspace", request: AblateRequest, sections: list[int]) -> None:
    names = [opened.graph.section_names[k] for k in sections]
    stencils = [
        name
        for name, k in zip(names, sections, strict=True)
        if not opened.network.sections[k].reads_per_position
    ]
    if request.robust and stencils:
        raise InterbasisError(
            f"robust counts do not support convolutions and pooling, received {', '.join(stencils)}; leave "
            "out --robust or choose other --sections"
        )


def _plan(
    opened: "Workspace", request: AblateRequest, data: "Data", sections: list[int]
) -> "AblationPlan | None":
    """Plan that fits the work into the limit on memory; None where there is no limit."""
    from interbasis.analysis.ablation.memory import AblationPlan
    from interbasis.data.batches import Batches

    if opened.memory is None:
        return None
    if request.robust:
        raise InterbasisError(
            "--robust holds the activations of all samples, so its memory cannot be limited; leave out "
            "--robust or --memory"
        )
    chosen = range(len(opened.graph.edges)) if request.nodes else sections
    return AblationPlan.within(opened.memory, opened.network, opened.graph, Batches(data), chosen)


def _edges(
    opened: "Workspace",
    request: AblateRequest,
    search: "Search",
    checkpoints: "Checkpoints",
    advance: Progress,
) -> "dict[str, State]":
    """Measure the sections that were asked for, each by one process: masks and draws, and the record."""
    from interbasis.analysis.ablation.search import ToleranceError
    from interbasis.compute.checkpoints import UNKNOWN_TOTAL

    chosen, team = opened.section_indices(request.sections), opened.team
    assigned = chosen[team.rank :: team.size]
    try:
        file = f"edges.all{f'.{team.rank}' if team.rank else ''}"
        reached = checkpoints.checkpoint(file, len(assigned), "metric with all edges")
        search.check_tolerance_is_reachable(assigned, reached)
    except ToleranceError:
        checkpoints.finish()  # nothing can be resumed
        raise

    def section(name: str) -> "State":
        k = opened.graph.section_names.index(name)
        checkpoint = checkpoints.checkpoint(f"edges.{k}", UNKNOWN_TOTAL, f"edges from {name}")
        edges = search.edges(k, advance, request.stable, checkpoint)
        tensors = {"edge_mask": edges.mask}
        if edges.draws is not None:
            tensors["count_draws"] = edges.draws
        robust = _robust(opened, request, search, edges, checkpoints, advance)
        return tensors, edges.model_copy(update={"robust": robust}).model_dump(mode="json")

    names = opened.graph.section_names
    longest_first = sorted(chosen, key=lambda k: not opened.network.sections[k].core.mixes_positions)
    collected = team.collect([names[k] for k in longest_first], section)
    return {names[k]: collected[names[k]] for k in chosen}


def _nodes(
    opened: "Workspace", search: "Search", checkpoints: "Checkpoints", advance: Progress
) -> "dict[str, State]":
    """Measure all layers but the last, each by one process."""
    from interbasis.compute.checkpoints import UNKNOWN_TOTAL

    def layer(name: str) -> "State":
        k = opened.graph.section_names.index(name)
        checkpoint = checkpoints.checkpoint(f"nodes.{k}", UNKNOWN_TOTAL, f"nodes of {name}")
        nodes = search.nodes(k, advance, None, checkpoint)
        return {}, nodes.model_dump(mode="json")

    return opened.team.collect(opened.graph.section_names, layer)


def _stored(
    opened: "Workspace", settings: AblationResult
) -> "tuple[dict[str, EdgesRequired], dict[str, NodesRequired], dict[str, Tensor]]":
    """Results stored already, where metric, tolerance, tokens and data are the same."""
    try:
        stored = opened.stored(AblationResult)
    except InterbasisError:  # damaged, or of another version: this run takes its place
        return {}, {}, {}
    if stored is None or stored.conditions != settings.conditions:
        return {}, {}, {}
    return dict(stored.sections), dict(stored.layers), opened.stored_tensors(AblationResult)


def _robust(
    opened: "Workspace",
    request: AblateRequest,
    search: "Search",
    edges: EdgesRequired,
    checkpoints: "Checkpoints",
    advance: Progress,
) -> RobustCount | None:
    if not request.robust:
        return None
    from interbasis.analysis.ablation.masked_pass import top_edges
    from interbasis.analysis.ablation.robust import Attack, RobustSearch

    k = opened.graph.section_names.index(edges.source)
    ranked, constant = opened.graph.edges[k], opened.graph.layers[k].constant
    candidates = ranked[:, int(constant) :].numel()

    def measured() -> "State":
        robust = RobustSearch(search.evaluation, k, search.limit, Attack(request.level))
        result = robust.count(
            edges.count, lambda count: top_edges(ranked, count, constant), candidates, advance
        )
        return {}, result.model_dump()

    called = f"robust edges from {opened.graph.section_names[k]}"
    _, values = checkpoints.remember(f"robust.{k}", measured, called)
    return RobustCount(**values)
