"""Search for the fewest edges or nodes that keep a model's accuracy or cross-entropy.

Edges are ranked by Ê and the largest are kept. The count is the paper's: bisection on the number of ablated
edges, by midpoints of the whole range 0 … d_in·d_out of the untruncated widths; where one edge is enough,
none at all (but the constant's) is tried too. A metric need not be monotone in the number of edges, so the
path decides; `stable_count` is reported beside it, the smallest count on a logarithmic grid from which every
larger one passes too.

How far a count would move with other samples is read off the masks that were tried: their losses sample by
sample are kept, samples are drawn again, and every draw has its own count (`bootstrap.count_on_draws`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from interbasis.analysis.ablation.bootstrap import count_on_draws
from interbasis.analysis.ablation.evaluation import Evaluation, Score, passes, worst_allowed
from interbasis.analysis.ablation.masked_pass import top_edges
from interbasis.analysis.ablation.records import EdgesRequired, NodesRequired, ToleranceError, Trial
from interbasis.base.errors import InterbasisError
from interbasis.base.messages import logger
from interbasis.base.progress import Progress, progress_bar
from interbasis.base.records import Metric
from interbasis.compute.checkpoints import NO_CHECKPOINTS, UNKNOWN_TOTAL, Checkpoint, Checkpoints, State
from interbasis.data.batches import Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network

GRID_POINTS_PER_OCTAVE = 2
"""Counts of the logarithmic grid between n and 2n."""


def logarithmic(largest: int, also: int = 1) -> Iterator[int]:
    """Counts from ``largest`` down to 1, evenly spaced in their logarithm, ``also`` in its place, and 0."""
    steps = math.ceil(math.log2(max(largest, 1)) * GRID_POINTS_PER_OCTAVE)
    grid = {round(2 ** (step / GRID_POINTS_PER_OCTAVE)) for step in range(steps)} | {largest, also, 0}
    yield from sorted((count for count in grid if count <= largest), reverse=True)


DEFAULT_TOLERANCE: dict[Metric, float] = {"accuracy": 0.001, "cross_entropy": 0.1}
"""Tolerances of the paper, by metric."""


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

    Each section is ablated alone; the baseline is the original model on the same data. Both are measured on
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
    evaluation = Evaluation(network, graph, data, metric, all_tokens)
    return Search(evaluation, tolerance, intervals).all_edges(sections, stable, progress)


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
    search = Search(Evaluation(network, graph, data, metric, all_tokens), tolerance)
    chosen = range(len(graph.layers) - 1) if layers is None else layers
    with progress_bar(progress) as advance:
        return [search.fewest_nodes(k, advance, counts) for k in chosen]


def warn_below_one_sample(metric: Metric, tolerance: float, answers: int) -> None:
    """Say where an accuracy that may be lost is less than one of the answers that are counted."""
    if metric == "accuracy" and 0 < tolerance < 1 / answers:
        enough, coarser = math.ceil(1 / tolerance), math.ceil(1e4 / answers) / 1e4
        logger.warning(
            f"a tolerance of {tolerance:g} is less than one of {answers:,} samples, so no mask may lose even "
            f"one; use at least {enough:,} samples, or a tolerance of {coarser:g}"
        )


class Search:
    """Trials of masks against a limit; how each did is remembered in unfinished work, if there is any."""

    def __init__(self, evaluation: Evaluation, tolerance: float | None = None, intervals: bool = False):
        tolerance = DEFAULT_TOLERANCE[evaluation.metric] if tolerance is None else tolerance
        if not 0 <= tolerance < math.inf:
            raise InterbasisError(f"the tolerance must be at least 0, not {tolerance}")
        self.evaluation, self.graph = evaluation, evaluation.graph
        self.tolerance, self.intervals = tolerance, intervals
        self.limit = worst_allowed(evaluation.baseline, tolerance)
        self.hopeless = worst_allowed(evaluation.baseline, 2 * tolerance) if intervals else self.limit
        """Limit from which trials are broken off; intervals need those in full that fail by little."""

    def trial(
        self, checkpoint: Checkpoint, name: str, kept: int, score: Callable[[], Score], losses: bool = False
    ) -> tuple[Trial, Tensor | None]:
        """Try a mask, or recall how it did; ``losses`` of masks that were evaluated in full on request."""

        def evaluate() -> State:
            result = score()
            passed = passes(result.metric, result.value, self.limit)
            trial = Trial(kept=kept, value=result.value, passed=passed, complete=result.complete)
            return {"losses": result.losses} if losses and result.complete else {}, trial.model_dump()

        tensors, values = checkpoint.remember(name, evaluate)
        return Trial(**values), tensors.get("losses")

    def all_edges(
        self,
        sections: Sequence[int] | None = None,
        stable: bool = True,
        progress: Progress | bool | None = None,
    ) -> list[EdgesWithMask]:
        """The edges required of all sections, or of some."""
        chosen = range(len(self.graph.edges)) if sections is None else sections
        self.check_tolerance_is_reachable(chosen)
        with progress_bar(progress) as advance:
            return [self.fewest_edges(k, advance, stable) for k in chosen]

    def check_tolerance_is_reachable(
        self, sections: Sequence[int], checkpoints: Checkpoints = NO_CHECKPOINTS, part: str = ""
    ) -> None:
        """Raise where even all edges miss the limit; ``part`` names the sections of one process."""
        name, failing = f"edges.all{part}", []
        checkpoint = checkpoints.checkpoint(name, len(sections), "metric with all edges")
        for k in sections:
            mask = torch.ones_like(self.graph.edges[k], dtype=torch.bool)
            score = partial(self.evaluation.edges, {k: mask})  # in full: the message names the value
            trial, _ = self.trial(checkpoint, str(k), mask.numel(), score)
            if not trial.passed:
                failing.append(f"{self.name(k)} ({trial.value:.6g})")
        if failing:
            metric = self.evaluation.metric.replace("_", "-")
            raise ToleranceError(
                f"even with all edges the {metric} misses {self.limit:.6g} in {', '.join(failing)}: the "
                "bases leave out too much; allow a larger tolerance, or build with a smaller threshold or in "
                "float64"
            )

    def fewest_edges(
        self, k: int, progress: Progress, stable: bool = True, checkpoints: Checkpoints = NO_CHECKPOINTS
    ) -> EdgesWithMask:
        """Bisection as in the paper, then the logarithmic grid."""
        graph, source = self.graph, self.graph.layers[k].name
        checkpoint = checkpoints.checkpoint(f"edges.{k}", UNKNOWN_TOTAL, f"edges from {source}")
        possible = graph.inner_edges(k).numel()
        most = math.prod(graph.provenance.widths[k : k + 2])  # the paper's bisection begins at d_in · d_out
        trial = SectionTrials(self, k, checkpoint)
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
        stable_count = trial.candidates if stable else None
        for number in logarithmic(trial.candidates, count) if stable else ():
            if not trial(number).passed:
                break
            stable_count = number
        interval, draws = None, None
        if self.intervals:
            draws, interval = count_on_draws(trial, count, self.evaluation.baseline, self.tolerance)
        return EdgesWithMask(
            source=source,
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

    def fewest_nodes(
        self,
        layer: int,
        progress: Progress,
        counts: Sequence[int] | None = None,
        checkpoints: Checkpoints = NO_CHECKPOINTS,
    ) -> NodesRequired:
        """Every number of nodes, or some; the smallest that passes."""
        basis = self.graph.layers[layer]
        checkpoint = checkpoints.checkpoint(f"nodes.{layer}", UNKNOWN_TOTAL, f"nodes of {basis.name}")
        fewest = basis.first_feature  # the constant counts, and stays
        tried = range(fewest, basis.features + 1) if counts is None else sorted(set(counts))
        if not tried or not fewest <= tried[0] <= tried[-1] <= basis.features:
            raise InterbasisError(
                f"layer {basis.name!r} has {basis.features} features; expected counts from {fewest} to that, "
                f"received {list(tried)}"
            )
        trials = []
        for done, first in enumerate(tried, 1):
            score = partial(self.evaluation.nodes, layer, first)
            trials.append(self.trial(checkpoint, str(first), first, score)[0])
            progress(f"nodes of {basis.name}", done, len(tried))
        count = next((visited.kept for visited in trials if visited.passed), None)
        return NodesRequired(layer=basis.name, count=count, features=basis.features, trials=tuple(trials))

    def name(self, k: int) -> str:
        return f"{self.graph.layers[k].name} → {self.graph.layers[k + 1].name}"


class SectionTrials:
    """Trials that keep the largest edges of one section, each number of them tried once."""

    def __init__(self, search: Search, k: int, checkpoint: Checkpoint):
        self._search, self._k, self._checkpoint = search, k, checkpoint
        self._edges, self._constant = search.graph.edges[k], search.graph.layers[k].constant
        self.candidates = self._edges[:, int(self._constant) :].numel()
        self.visited: dict[int, Trial] = {}
        self.losses: dict[int, Tensor] = {}
        """Losses of the masks that were evaluated in full, by the number kept, [samples] each."""

    def mask(self, count: int) -> Tensor:
        return top_edges(self._edges, count, self._constant)

    def smallest(self, count: int) -> float:
        """The smallest edge among the ``count`` largest; of none of them, the largest edge there is."""
        ranked = self._edges[:, int(self._constant) :].flatten().sort(descending=True).values
        return ranked[max(count - 1, 0)].item() if len(ranked) else 0.0

    def __call__(self, count: int) -> Trial:
        count = min(count, self.candidates)
        if count not in self.visited:
            self._try(count, self._search.hopeless)
        return self.visited[count]

    def whole(self, count: int) -> None:
        """Evaluate all samples, even once the limit is missed for certain."""
        if count not in self.losses:
            self._try(count, None)

    def _try(self, count: int, limit: float | None) -> None:
        search, name = self._search, f"{count} in full" if limit is None else str(count)
        score = partial(search.evaluation.edges, {self._k: self.mask(count)}, limit)
        self.visited[count], losses = search.trial(self._checkpoint, name, count, score, search.intervals)
        if losses is not None:
            self.losses[count] = losses
