"""How the metric falls as edges go: curves without a threshold, and the two areas under them.

With m(k) the metric when the fraction k of the edges is kept, m(∅) with none but the constant's and m the
untouched model's, the faithfulness is F(k) = (m(k) − m(∅)) / (m − m(∅)). The areas are those of the MIB
benchmark, by the trapezoid rule from k = 0, where F is 0, to 1:

    area = ∫ F dk          larger is better: few edges do much
    distance = ∫ |1 − F| dk     smaller is better: few edges do the same as all.

The fraction is that of all d_out·(d_in − 1) edges of the untruncated widths, the constant's left out, so that
bases that dropped different numbers of features are compared at equal numbers of edges.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.ablation import bootstrap
from interbasis.ablation.evaluation import Evaluation
from interbasis.ablation.masked_pass import top_edges
from interbasis.ablation.metrics import Score
from interbasis.data.batches import Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network
from interbasis.runtime.checkpoints import NO_CHECKPOINTS, Checkpoint, Checkpoints
from interbasis.runtime.errors import InterbasisError
from interbasis.runtime.literals import Metric
from interbasis.runtime.progress import Progress, progress_bar

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

Interval = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """The metric against the fraction of edges kept, in one section or in all at once."""

    sections: tuple[int, ...]
    counts: tuple[int, ...]
    """Edges kept at each fraction."""
    values: tuple[float, ...]
    faithfulness: tuple[float, ...]
    """NaN, and so the areas, where the model does no better than with no edges at all."""
    nothing: float
    """The metric with none but the constant's edges."""
    area: float
    distance: float
    value_intervals: tuple[Interval, ...]
    """95 % bootstrap intervals over the samples."""
    area_interval: Interval
    distance_interval: Interval


@dataclass(frozen=True)
class Curves:
    metric: Metric
    baseline: float
    fractions: tuple[float, ...]
    sections: tuple[Curve, ...]
    whole: Curve
    """All sections ablated at once, each to the same fraction."""


def sparsity_curves(
    network: Network,
    graph: InteractionGraph,
    data: Data,
    metric: Metric | None = None,
    *,
    fractions: Sequence[float] = FRACTIONS,
    ranking: Sequence[Tensor] | None = None,
    seed: int = 0,
    progress: Progress | bool | None = None,
    resume: Checkpoints = NO_CHECKPOINTS,
) -> Curves:
    """The metric at fractions of the edges kept, per section and for the whole network.

    The largest edges are kept; ``ranking``, a matrix per section of the shape of its edges, ranks them by
    something else. Data and metric are those of `edges_required`. ``seed`` is the bootstrap's. ``resume``
    keeps unfinished work.
    """
    if not graph.edges:
        raise InterbasisError("the graph has no edges to ablate; build it with an edge_method")
    chosen = tuple(fractions)
    if not chosen or list(chosen) != sorted(set(chosen)) or not 0 < chosen[0] <= chosen[-1] <= 1:
        raise InterbasisError(f"fractions rise from above 0 to at most 1, received {list(chosen)}")
    evaluation = Evaluation(network, graph, data, metric)
    ranks = graph.edges if ranking is None else ranking
    together = tuple(range(len(graph.edges)))
    wanted = [*((k,) for k in together), together]
    steps = len(wanted) * (len(chosen) + 1)
    curves = []
    with progress_bar(progress) as advance:
        for number, sections in enumerate(wanted):

            def done(step: int, before: int = number * (len(chosen) + 1)) -> None:
                advance("curves", before + step, steps)

            checkpoint = resume.checkpoint(f"curve.{number}", total=len(chosen) + 1)
            curves.append(_Tracer(evaluation, ranks, seed).curve(sections, chosen, checkpoint, done))
    return Curves(evaluation.metric, evaluation.baseline.value, chosen, tuple(curves[:-1]), curves[-1])


@dataclass(frozen=True, eq=False)
class _Tracer:
    evaluation: Evaluation
    ranking: Sequence[Tensor]
    seed: int

    def curve(
        self,
        sections: tuple[int, ...],
        fractions: tuple[float, ...],
        checkpoint: Checkpoint,
        done: Callable[[int], None],
    ) -> Curve:
        losses, counts = checkpoint.tensors, []
        labelled = self.evaluation.baseline.counts
        for step, fraction in enumerate((0.0, *fractions)):
            kept = {k: round(fraction * self.possible(k)) for k in sections}
            counts.append(sum(kept.values()))
            if f"losses.{step}" not in losses:
                masks = {k: self.mask(k, count) for k, count in kept.items()}
                losses[f"losses.{step}"] = self.evaluation.edges(masks).losses
                checkpoint.save(step + 1, lambda: (losses, {}))
            done(step + 1)
        scores = [Score(self.evaluation.metric, losses[f"losses.{k}"], labelled) for k in range(len(counts))]
        return self._assemble(sections, fractions, counts[1:], scores)

    def possible(self, k: int) -> int:
        graph = self.evaluation.graph
        width_in, width_out = graph.provenance.widths[k : k + 2]
        return width_out * (width_in - (1 if graph.layers[k].constant else 0))

    def mask(self, k: int, count: int) -> Tensor:
        return top_edges(self.ranking[k], count, self.evaluation.graph.layers[k].constant)

    def _assemble(
        self, sections: tuple[int, ...], fractions: tuple[float, ...], counts: list[int], scores: list[Score]
    ) -> Curve:
        baseline = self.evaluation.baseline
        ks = torch.tensor((0.0, *fractions), dtype=torch.float64)

        def faithfulness(values: Tensor) -> Tensor:  # [draws, 1 + points, 1 more for the baseline]
            nothing, whole = values[:, :1], values[:, -1:]
            return (values[:, :-1] - nothing) / (whole - nothing)

        def area(values: Tensor) -> Tensor:
            return torch.trapezoid(faithfulness(values), ks)

        def distance(values: Tensor) -> Tensor:
            return torch.trapezoid((1 - faithfulness(values)).abs(), ks)

        measured = [*scores, baseline]
        values = torch.tensor([[score.value for score in measured]], dtype=torch.float64)
        draws = torch.cat(list(bootstrap.resampled(measured, 1000, self.seed)))
        return Curve(
            sections,
            tuple(counts),
            tuple(values[0, 1:-1].tolist()),
            tuple(faithfulness(values)[0, 1:].tolist()),
            values[0, 0].item(),
            area(values).item(),
            distance(values).item(),
            tuple(bootstrap.central(draws[:, point]) for point in range(1, len(ks))),
            bootstrap.central(area(draws)),
            bootstrap.central(distance(draws)),
        )
