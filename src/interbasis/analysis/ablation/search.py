"""How few edges, how few nodes: the fewest that keep a model's accuracy or cross-entropy.

Edges are ranked by Ê and the largest are kept. The count is the paper's: bisection on the number of ablated
edges, by midpoints of the whole range 0 … d_in·d_out of the untruncated widths; where one edge is enough,
none at all (but the constant's) is tried too. A metric need not be monotone in the number of edges, so the
path decides; `stable_count` is reported beside it, the smallest count on a logarithmic grid from which every
larger one passes too.

How far a count would move with other samples is read off the masks that were tried: their losses sample by
sample are kept, samples are drawn again, and every draw has its own count (`count_intervals`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from interbasis.analysis.ablation.count_intervals import CountOnDraws, count_on_draws
from interbasis.analysis.ablation.evaluation import Evaluation, Score, passes, worst_allowed
from interbasis.analysis.ablation.masked_pass import top_edges
from interbasis.analysis.ablation.records import Trial
from interbasis.base.errors import InterbasisError
from interbasis.base.messages import logger
from interbasis.base.progress import Progress, progress_bar
from interbasis.base.records import Metric
from interbasis.compute.checkpoints import Checkpoint, State
from interbasis.data.batches import Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network

GRID_POINTS_PER_OCTAVE = 2
"""Counts of the logarithmic grid between n and 2n."""


class SectionTrials:
    """Keeping the largest edges of one section, each number of them tried once."""

    def __init__(
        self,
        edges: Tensor,
        constant: bool,
        score: Callable[[Tensor, bool], Score],
        passes: Callable[[float], bool],
        memory: "Memory",
    ):
        self.edges = edges
        self.free = int(constant)
        self.candidates = edges[:, self.free :].numel()
        self._memory = memory
        self._score = score
        self._passes = passes

    def mask(self, kept: int) -> Tensor:
        return top_edges(self.edges, kept, bool(self.free))

    def smallest(self, kept: int) -> float:
        """The smallest edge among the ``kept`` largest; of none of them, the largest edge there is."""
        ranked = self.edges[:, self.free :].flatten().sort(descending=True).values
        return ranked[max(kept - 1, 0)].item() if len(ranked) else 0.0

    def __call__(self, kept: int) -> Trial:
        kept = min(kept, self.candidates)
        if kept not in self.visited:
            self._try(kept, whole=False)
        return self.visited[kept]

    def whole(self, kept: int) -> None:
        """Look at all samples, however badly it goes."""
        if kept not in self.losses:
            self._try(kept, whole=True)

    def _try(self, kept: int, whole: bool) -> None:
        score = self._score(self.mask(kept), whole)
        visited = Trial(
            kept=kept, value=score.value, passed=self._passes(score.value), complete=score.complete
        )
        self._memory.add(visited, score.losses)

    @property
    def losses(self) -> dict[int, Tensor]:
        """Of the masks that were looked at in full, by the number kept, [samples] each."""
        return self._memory.losses

    @property
    def visited(self) -> dict[int, Trial]:
        return self._memory.visited


class Memory:
    """What was tried, by the number kept; written to unfinished work where there is a place for it."""

    def __init__(self, checkpoint: Checkpoint | None = None, losses: bool = False):
        self._checkpoint = checkpoint or Checkpoint()
        self._keeps_losses = losses
        rows = self._checkpoint.values.get("visited", [])
        self.visited = {row["kept"]: Trial(**row) for row in rows}
        self.losses = {int(kept): losses for kept, losses in self._checkpoint.tensors.items()}

    def add(self, visited: Trial, losses: Tensor | None = None) -> None:
        self.visited[visited.kept] = visited
        if self._keeps_losses and visited.complete and losses is not None:
            self.losses[visited.kept] = losses
        self._checkpoint.save(len(self.visited), self._state)

    def _state(self) -> State:
        tensors = {str(kept): losses for kept, losses in self.losses.items()}
        return tensors, {"visited": [row.model_dump() for row in self.visited.values()]}


def logarithmic(largest: int, also: int = 1) -> Iterator[int]:
    """Counts from ``largest`` down to 1, evenly spaced in their logarithm, ``also`` in its place, and 0."""
    steps = math.ceil(math.log2(max(largest, 1)) * GRID_POINTS_PER_OCTAVE)
    grid = {round(2 ** (step / GRID_POINTS_PER_OCTAVE)) for step in range(steps)} | {largest, also, 0}
    yield from sorted((count for count in grid if count <= largest), reverse=True)


DEFAULT_TOLERANCE: dict[Metric, float] = {"accuracy": 0.001, "cross_entropy": 0.1}
"""The paper's."""


class ToleranceError(InterbasisError):
    """A tolerance that cannot be met."""


@dataclass(frozen=True, eq=False)
class EdgesRequired:
    """The fewest edges of one section that keep the metric."""

    source: str
    target: str
    count: int
    """Edges kept by the accepted mask, the constant's not counted."""
    possible: int
    """Edges between the kept features of the two layers, the constant's not counted."""
    epsilon: float
    """ε, the smallest edge Ê that the accepted mask keeps; where it keeps none, the largest there is, so that
    no edge lies above ε."""
    mask: Tensor
    """[features_out, features_in], True for a kept edge; the constant's column is True."""
    value: float
    """The metric with the accepted mask."""
    stable_count: int | None
    """The smallest count from which every larger one on a logarithmic grid passes; None if not asked for."""
    curve: tuple[Trial, ...]
    """All masks tried, by the number of edges kept."""
    resampled: CountOnDraws | None = None
    """The count on samples drawn again; None if not asked for."""

    @property
    def draws(self) -> Tensor | None:
        """[draws], the same for every section and basis on the same samples."""
        return None if self.resampled is None else self.resampled.draws

    @property
    def interval(self) -> tuple[int, int] | None:
        """95 % of the draws, both ends inside."""
        return None if self.resampled is None else self.resampled.interval

    @property
    def kept_fraction(self) -> float:
        """Share of the edges there are; 0 where there are none."""
        return self.count / self.possible if self.possible else 0.0


@dataclass(frozen=True)
class NodesRequired:
    """The fewest features of one layer that keep the metric, the constant counted."""

    layer: str
    count: int | None
    """None where even all of them do not."""
    curve: tuple[Trial, ...]


class EdgeOptions(TypedDict, total=False):
    """Options of `edges_required`."""

    sections: Sequence[int] | None
    """Sections by index; default: all."""
    stable: bool
    """Search the logarithmic grid, too; default: True."""
    intervals: bool
    """Add the counts on samples drawn again; default: False."""
    all_tokens: bool
    """Mask tokens that the graph leaves out, too; default: False."""
    progress: Progress | bool | None


class NodeOptions(TypedDict, total=False):
    """Options of `nodes_required`."""

    layers: Sequence[int] | None
    """Layers by index; default: all but the last."""
    counts: Sequence[int] | None
    """Numbers of features to try; default: all."""
    all_tokens: bool
    """Mask tokens that the graph leaves out, too; default: False."""
    progress: Progress | bool | None


def edges_required(
    network: Network,
    graph: InteractionGraph,
    data: Data,
    metric: Metric | None = None,
    tolerance: float | None = None,
    **options: Unpack[EdgeOptions],
) -> list[EdgesRequired]:
    """The fewest edges per section that keep accuracy ≥ baseline − or cross-entropy ≤ baseline + tolerance.

    Each section is ablated alone; the baseline is the untouched model on the same data. Both are measured on
    all tokens. Tokens that the graph leaves out (``norm_limit``, ``skip_positions``) are not masked.

    Args:
        network: The network that the graph was built for.
        graph: A graph with edges.
        data: (inputs, labels), a list of such batches or a DataLoader. A language model's labels are the
            tokens that follow, (tokens[:, :-1], tokens[:, 1:]); they are made where tokens are given alone.
        metric: "accuracy" or "cross_entropy"; default: cross-entropy for language models, else accuracy.
        tolerance: Default: the paper's, 0.001 for accuracy and 0.1 for cross-entropy.
        **options: ``sections`` (some by index), ``stable=False`` (no search on the logarithmic grid),
            ``intervals`` (counts on samples drawn again), ``all_tokens`` (mask those that the graph leaves
            out, too), ``progress``.

    Returns:
        One result per section, in the network's order.

    Raises:
        InterbasisError: The graph has no edges, or not even all edges meet the tolerance.
    """
    search = Search.of(network, graph, data, metric, tolerance, options.get("all_tokens", False))
    return search.all_edges(
        options.get("sections"),
        options.get("stable", True),
        options.get("intervals", False),
        options.get("progress"),
    )


def nodes_required(
    network: Network,
    graph: InteractionGraph,
    data: Data,
    metric: Metric | None = None,
    tolerance: float | None = None,
    **options: Unpack[NodeOptions],
) -> list[NodesRequired]:
    """The fewest features per layer, except the last, by trying every number of them.

    A layer keeps its first k features, the constant among them, and the others are put at their mean. The
    count is the smallest k that passes.

    Args:
        network: The network that the graph was built for.
        graph: A graph with edges.
        data: As for `edges_required`.
        metric: As for `edges_required`.
        tolerance: As for `edges_required`.
        **options: ``layers`` (some by index), ``counts`` (numbers of features to try), ``all_tokens`` (as
            for `edges_required`), ``progress``.

    Returns:
        One result per layer, whose curve holds every k tried.

    Raises:
        InterbasisError: The graph has no edges, or a count is out of range.
    """
    search = Search.of(network, graph, data, metric, tolerance, options.get("all_tokens", False))
    return search.all_nodes(options.get("layers"), options.get("counts"), options.get("progress"))


def warn_below_one_sample(metric: Metric, tolerance: float, answers: int) -> None:
    """Say where an accuracy that may be lost is less than one of the answers that are counted."""
    if metric == "accuracy" and 0 < tolerance < 1 / answers:
        enough, coarser = math.ceil(1 / tolerance), math.ceil(1e4 / answers) / 1e4
        logger.warning(
            f"a tolerance of {tolerance:g} is less than one of {answers:,} samples, so no mask may lose even "
            f"one; use at least {enough:,} samples, or a tolerance of {coarser:g}"
        )


def check_has_edges(graph: InteractionGraph) -> None:
    """Refuse to ablate the edges of a graph without any."""
    if not graph.edges:
        raise InterbasisError("the graph has no edges to ablate; build it with an edge_method")


@dataclass(frozen=True, eq=False)
class Search:
    """Trying masks against a limit."""

    evaluation: Evaluation
    limit: float
    tolerance: float
    intervals: bool = False
    """Whether counts come with draws; masks that miss the limit by little are looked at in full then."""

    @classmethod
    def of(
        cls,
        network: Network,
        graph: InteractionGraph,
        data: Data,
        metric: Metric | None,
        tolerance: float | None = None,
        all_tokens: bool = False,
    ) -> "Search":
        check_has_edges(graph)
        return cls.by(Evaluation(network, graph, data, metric, all_tokens), tolerance)

    @classmethod
    def by(cls, evaluation: Evaluation, tolerance: float | None = None) -> "Search":
        """Judged by an evaluation."""
        metric = evaluation.metric
        tolerance = DEFAULT_TOLERANCE[metric] if tolerance is None else tolerance
        if not 0 <= tolerance < math.inf:
            raise InterbasisError(f"the tolerance must be at least 0, not {tolerance}")
        limit = worst_allowed(evaluation.baseline, tolerance)
        return cls(evaluation, limit, tolerance)

    def warn_below_one_sample(self) -> None:
        """Say where the tolerance is finer than the data."""
        baseline = self.evaluation.baseline
        warn_below_one_sample(baseline.metric, self.tolerance, int(baseline.counts.sum()))

    def with_intervals(self) -> "Search":
        """The same search, whose counts come with draws."""
        return replace(self, intervals=True)

    def all_edges(
        self,
        sections: Sequence[int] | None = None,
        stable: bool = True,
        intervals: bool = False,
        progress: Progress | bool | None = None,
    ) -> list[EdgesRequired]:
        """The edges required of all sections, or of some."""
        search = self.with_intervals() if intervals else self
        chosen = range(len(self.graph.edges)) if sections is None else sections
        search.check_tolerance_is_reachable(chosen)
        with progress_bar(progress) as advance:
            return [search.edges(k, advance, stable) for k in chosen]

    def all_nodes(
        self,
        layers: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        progress: Progress | bool | None = None,
    ) -> list[NodesRequired]:
        """The nodes required of all layers but the last, or of some."""
        chosen = range(len(self.graph.layers) - 1) if layers is None else layers
        with progress_bar(progress) as advance:
            return [self.nodes(k, advance, counts) for k in chosen]

    @property
    def graph(self) -> InteractionGraph:
        return self.evaluation.graph

    def passes(self, value: float) -> bool:
        return passes(self.evaluation.metric, value, self.limit)

    def check_tolerance_is_reachable(
        self, sections: Sequence[int], checkpoint: Checkpoint | None = None
    ) -> None:
        """Raise where even all edges miss the limit; ``checkpoint`` remembers those that meet it."""
        checkpoint = checkpoint or Checkpoint()
        values = {int(k): value for k, value in checkpoint.values.items()}
        failing = []
        for k in sections:
            if k not in values:
                every = torch.ones_like(self.graph.edges[k], dtype=torch.bool)
                values[k] = self.evaluation.edges({k: every}).value  # in full: it is told as it is
            if not self.passes(values[k]):
                failing.append(f"{self.name(k)} ({values[k]:.6g})")
            if not failing:
                checkpoint.save(len(values), lambda: ({}, {str(k): value for k, value in values.items()}))
        if failing:
            metric = self.evaluation.metric.replace("_", "-")
            raise ToleranceError(
                f"even with all edges the {metric} misses {self.limit:.6g} in {', '.join(failing)}: the "
                "bases leave out too much; allow a larger tolerance, or build with a smaller threshold or in "
                "float64"
            )

    def edges(
        self, k: int, progress: Progress, stable: bool = True, checkpoint: Checkpoint | None = None
    ) -> EdgesRequired:
        """Bisection as in the paper, then the logarithmic grid; ``checkpoint`` remembers what was tried."""
        graph = self.graph
        possible = graph.inner_edges(k).numel()
        most = math.prod(graph.provenance.widths[k : k + 2])  # the paper's bisection begins at d_in · d_out
        trial = self._trial(k, checkpoint)
        steps = math.ceil(math.log2(most))
        done = 0
        passing, failing = 0, most  # numbers of ablated edges
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if trial(most - middle).passed:
                passing = middle
            else:
                failing = middle
            done += 1
            progress(f"edges of {self.name(k)}", min(done, steps), steps)
        count = min(most - passing, possible)
        if count == 1 and trial(0).passed:  # the bisection never asks for the end of its range
            count = 0
        accepted = trial(count)
        stable_count = self._stable_count(trial, count) if stable else None
        mask = trial.mask(count)
        resampled = (
            count_on_draws(trial, count, self.evaluation.baseline, self.tolerance) if self.intervals else None
        )
        return EdgesRequired(
            source=graph.layers[k].name,
            target=graph.layers[k + 1].name,
            count=count,
            possible=possible,
            epsilon=trial.smallest(count),
            mask=mask,
            value=accepted.value,
            stable_count=stable_count,
            curve=tuple(sorted(trial.visited.values(), key=lambda visited: visited.kept)),
            resampled=resampled,
        )

    def _stable_count(self, trial: SectionTrials, count: int) -> int:
        """Down the grid, with the bisection's count in it, as long as everything passes."""
        smallest = trial.candidates
        for kept in logarithmic(trial.candidates, count):
            if not trial(kept).passed:
                break
            smallest = kept
        return smallest

    def nodes(
        self,
        layer: int,
        progress: Progress,
        counts: Sequence[int] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> NodesRequired:
        basis = self.graph.layers[layer]
        fewest = basis.first_feature  # the constant counts, and stays
        tried = range(fewest, basis.features + 1) if counts is None else sorted(set(counts))
        if not tried or not fewest <= tried[0] <= tried[-1] <= basis.features:
            raise InterbasisError(
                f"layer {basis.name!r} has {basis.features} features; expected counts from {fewest} to that, "
                f"received {list(tried)}"
            )
        memory = Memory(checkpoint)
        curve = []
        for done, first in enumerate(tried, 1):
            if first not in memory.visited:
                value = self.evaluation.nodes(layer, first).value
                memory.add(Trial(kept=first, value=value, passed=self.passes(value)))
            curve.append(memory.visited[first])
            progress(f"nodes of {basis.name}", done, len(tried))
        count = next((visited.kept for visited in curve if visited.passed), None)
        return NodesRequired(basis.name, count, tuple(curve))

    def name(self, k: int) -> str:
        return f"{self.graph.layers[k].name} → {self.graph.layers[k + 1].name}"

    def _trial(self, k: int, checkpoint: Checkpoint | None = None) -> SectionTrials:
        hopeless = (
            worst_allowed(self.evaluation.baseline, 2 * self.tolerance) if self.intervals else self.limit
        )

        def score(mask: Tensor, whole: bool) -> Score:
            return self.evaluation.edges({k: mask}, None if whole else hopeless)

        constant = self.graph.layers[k].constant
        memory = Memory(checkpoint, losses=self.intervals)
        return SectionTrials(self.graph.edges[k], constant, score, self.passes, memory)
