"""Search for the fewest edges or nodes that keep a model's accuracy or cross-entropy.

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

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from interbasis.analysis.ablation.count_intervals import count_on_draws
from interbasis.analysis.ablation.evaluation import Evaluation, Score, passes, worst_allowed
from interbasis.analysis.ablation.masked_pass import top_edges
from interbasis.analysis.ablation.records import EdgesRequired, NodesRequired, Trial
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
    """Trials that keep the largest edges of one section, each number of them tried once."""

    def __init__(
        self,
        edges: Tensor,
        constant: bool,
        score: Callable[[Tensor, bool], Score],
        passes: Callable[[float], bool],
        log: "TrialLog",
    ):
        self.edges = edges
        self.free = int(constant)
        self.candidates = edges[:, self.free :].numel()
        self._log = log
        self._score = score
        self._passes = passes

    def mask(self, count: int) -> Tensor:
        return top_edges(self.edges, count, bool(self.free))

    def smallest(self, count: int) -> float:
        """The smallest edge among the ``count`` largest; of none of them, the largest edge there is."""
        ranked = self.edges[:, self.free :].flatten().sort(descending=True).values
        return ranked[max(count - 1, 0)].item() if len(ranked) else 0.0

    def __call__(self, count: int) -> Trial:
        count = min(count, self.candidates)
        if count not in self.visited:
            self._try(count, whole=False)
        return self.visited[count]

    def whole(self, count: int) -> None:
        """Evaluate all samples, even once the limit is missed for certain."""
        if count not in self.losses:
            self._try(count, whole=True)

    def _try(self, count: int, whole: bool) -> None:
        score = self._score(self.mask(count), whole)
        visited = Trial(
            kept=count, value=score.value, passed=self._passes(score.value), complete=score.complete
        )
        self._log.add(visited, score.losses)

    @property
    def losses(self) -> dict[int, Tensor]:
        """Losses of the masks that were evaluated in full, by the number kept, [samples] each."""
        return self._log.losses

    @property
    def visited(self) -> dict[int, Trial]:
        return self._log.visited


class TrialLog:
    """Trials by the number kept; written to unfinished work where there is a place for it."""

    def __init__(self, checkpoint: Checkpoint | None = None, losses: bool = False):
        self._checkpoint = checkpoint or Checkpoint()
        self._keeps_losses = losses
        rows = self._checkpoint.values.get("visited", [])
        self.visited = {row["kept"]: Trial(**row) for row in rows}
        self.losses = {int(count): losses for count, losses in self._checkpoint.tensors.items()}

    def add(self, visited: Trial, losses: Tensor | None = None) -> None:
        self.visited[visited.kept] = visited
        if self._keeps_losses and visited.complete and losses is not None:
            self.losses[visited.kept] = losses
        self._checkpoint.save(len(self.visited), self._state)

    def _state(self) -> State:
        tensors = {str(count): losses for count, losses in self.losses.items()}
        return tensors, {"visited": [row.model_dump() for row in self.visited.values()]}


def logarithmic(largest: int, also: int = 1) -> Iterator[int]:
    """Counts from ``largest`` down to 1, evenly spaced in their logarithm, ``also`` in its place, and 0."""
    steps = math.ceil(math.log2(max(largest, 1)) * GRID_POINTS_PER_OCTAVE)
    grid = {round(2 ** (step / GRID_POINTS_PER_OCTAVE)) for step in range(steps)} | {largest, also, 0}
    yield from sorted((count for count in grid if count <= largest), reverse=True)


DEFAULT_TOLERANCE: dict[Metric, float] = {"accuracy": 0.001, "cross_entropy": 0.1}
"""Tolerances of the paper, by metric."""


class ToleranceError(InterbasisError):
    """A tolerance that cannot be met."""


class EdgesWithMask(EdgesRequired):
    """Edges required with what is not in their record."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    mask: Tensor = Field(exclude=True, repr=False)
    """[features_out, features_in], True for a kept edge; the constant's column is True."""
    draws: Tensor | None = Field(None, exclude=True, repr=False)
    """[draws], counts on samples drawn again; the same draws for every section and basis on the same data."""


def edges_required(
    network: Network,
    graph: InteractionGraph,
    data: Data,
    metric: Metric | None = None,
    tolerance: float | None = None,
    *,
    sections: Sequence[int] | None = None,
    stable: bool = True,
    intervals: bool = False,
    all_tokens: bool = False,
    progress: Progress | bool | None = None,
) -> list[EdgesWithMask]:
    """Find the fewest edges of each section that keep the metric within the tolerance of the baseline.

    Each section is ablated alone; the baseline is the untouched model on the same data. Both are measured on
    all tokens. Tokens that the graph leaves out (``norm_limit``, ``skip_positions``) are not masked.

    Args:
        network: The network that the graph was built for.
        graph: A graph with edges.
        data: (inputs, labels), a list of such batches or a DataLoader. A language model's labels are the
            tokens that follow, (tokens[:, :-1], tokens[:, 1:]); they are made where tokens are given alone.
        metric: "accuracy" or "cross_entropy"; default: cross-entropy for language models, else accuracy.
        tolerance: Default: the paper's, 0.001 for accuracy and 0.1 for cross-entropy.
        sections: Sections by index; default: all.
        stable: Also search a logarithmic grid for the count from which every larger one passes.
        intervals: Add counts on samples drawn again.
        all_tokens: Mask tokens that the graph leaves out, too.
        progress: Show progress: True, False, a function, or None: bars on a terminal, else lines.

    Returns:
        One result per section, in the network's order.

    Raises:
        InterbasisError: The graph has no edges, or not even all edges meet the tolerance.
    """
    search = Search.from_graph(network, graph, data, metric, tolerance, all_tokens)
    return search.all_edges(sections, stable, intervals, progress)


def nodes_required(
    network: Network,
    graph: InteractionGraph,
    data: Data,
    metric: Metric | None = None,
    tolerance: float | None = None,
    *,
    layers: Sequence[int] | None = None,
    counts: Sequence[int] | None = None,
    all_tokens: bool = False,
    progress: Progress | bool | None = None,
) -> list[NodesRequired]:
    """Find the fewest features of each layer, except the last, by trying every number of them.

    A layer keeps its first k features, the constant among them, and the others are put at their mean. The
    count is the smallest k that passes. Arguments as for `edges_required`, and

    Args:
        network: The network that the graph was built for.
        graph: A graph with edges.
        data: Inputs with labels.
        metric: The metric.
        tolerance: The tolerance.
        layers: Layers by index; default: all but the last.
        counts: Numbers of features to try; default: all.
        all_tokens: Mask tokens that the graph leaves out, too.
        progress: Show progress.

    Returns:
        One result per layer, with a trial for every k.

    Raises:
        InterbasisError: The graph has no edges, or a count is out of range.
    """
    search = Search.from_graph(network, graph, data, metric, tolerance, all_tokens)
    return search.all_nodes(layers, counts, progress)


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
    def from_graph(
        cls,
        network: Network,
        graph: InteractionGraph,
        data: Data,
        metric: Metric | None,
        tolerance: float | None = None,
        all_tokens: bool = False,
    ) -> "Search":
        check_has_edges(graph)
        return cls.from_evaluation(Evaluation(network, graph, data, metric, all_tokens), tolerance)

    @classmethod
    def from_evaluation(cls, evaluation: Evaluation, tolerance: float | None = None) -> "Search":
        """Judge masks by an evaluation."""
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
        """Return the search with draws of its counts."""
        return replace(self, intervals=True)

    def all_edges(
        self,
        sections: Sequence[int] | None = None,
        stable: bool = True,
        intervals: bool = False,
        progress: Progress | bool | None = None,
    ) -> list[EdgesWithMask]:
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
    ) -> EdgesWithMask:
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
        interval, draws = None, None
        if self.intervals:
            resampled = count_on_draws(trial, count, self.evaluation.baseline, self.tolerance)
            interval, draws = resampled.interval, resampled.draws
        return EdgesWithMask(
            source=graph.layers[k].name,
            target=graph.layers[k + 1].name,
            count=count,
            possible=possible,
            epsilon=trial.smallest(count),
            value=accepted.value,
            stable_count=stable_count,
            interval=interval,
            trials=tuple(sorted(trial.visited.values(), key=lambda visited: visited.kept)),
            mask=trial.mask(count),
            draws=draws,
        )

    def _stable_count(self, trial: SectionTrials, count: int) -> int:
        """Smallest count down the grid, the bisection's count in it, as long as everything passes."""
        smallest = trial.candidates
        for number in logarithmic(trial.candidates, count):
            if not trial(number).passed:
                break
            smallest = number
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
        log = TrialLog(checkpoint)
        trials = []
        for done, first in enumerate(tried, 1):
            if first not in log.visited:
                value = self.evaluation.nodes(layer, first).value
                log.add(Trial(kept=first, value=value, passed=self.passes(value)))
            trials.append(log.visited[first])
            progress(f"nodes of {basis.name}", done, len(tried))
        count = next((visited.kept for visited in trials if visited.passed), None)
        return NodesRequired(layer=basis.name, count=count, features=basis.features, trials=tuple(trials))

    def name(self, k: int) -> str:
        return f"{self.graph.layers[k].name} → {self.graph.layers[k + 1].name}"

    def _trial(self, k: int, checkpoint: Checkpoint | None = None) -> SectionTrials:
        hopeless = (
            worst_allowed(self.evaluation.baseline, 2 * self.tolerance) if self.intervals else self.limit
        )

        def score(mask: Tensor, whole: bool) -> Score:
            return self.evaluation.edges({k: mask}, None if whole else hopeless)

        constant = self.graph.layers[k].constant
        log = TrialLog(checkpoint, losses=self.intervals)
        return SectionTrials(self.graph.edges[k], constant, score, self.passes, log)
