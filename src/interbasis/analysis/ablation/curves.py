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
from functools import partial
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from interbasis.analysis.ablation import bootstrap
from interbasis.analysis.ablation.evaluation import Evaluation
from interbasis.analysis.ablation.masked_pass import top_edges
from interbasis.analysis.ablation.metrics import Score
from interbasis.analysis.ablation.records import Curve, Curves
from interbasis.base.errors import InterbasisError
from interbasis.base.literals import Metric
from interbasis.base.progress import Progress, progress_bar
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoint, Checkpoints, State
from interbasis.compute.team import ALONE, Team
from interbasis.data.batches import Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class CurveOptions(TypedDict, total=False):
    """Options of `sparsity_curves`."""

    fractions: Sequence[float]
    """Fractions of the edges kept, rising; default: 0.001 to 1."""
    ranking: Sequence[Tensor] | None
    """A matrix per section, of the shape of its edges, to rank them by; default: Ê."""
    seed: int
    """Seed of the bootstrap; default: 0."""
    progress: Progress | bool | None
    checkpoints: Checkpoints
    """Where unfinished work is stored; default: nowhere."""
    team: Team
    """Processes that share the curves; default: this one alone."""


def sparsity_curves(
    network: Network,
    graph: InteractionGraph,
    data: Data,
    metric: Metric | None = None,
    **options: Unpack[CurveOptions],
) -> Curves:
    """The metric at fractions of the edges kept, per section and for the whole network.

    Args:
        network: The network that the graph was built for.
        graph: A graph with edges, the largest of which are kept.
        data: As for `edges_required`.
        metric: As for `edges_required`.
        **options: ``fractions``, ``ranking`` (a matrix per section to rank edges by), ``seed`` of the
            bootstrap, ``progress``, ``checkpoints``, ``team``.

    Returns:
        A curve per section and one of all sections at once, with 95 % bootstrap intervals.

    Raises:
        InterbasisError: The graph has no edges, or fractions do not rise within (0, 1].
    """
    if not graph.edges:
        raise InterbasisError("the graph has no edges to ablate; build it with an edge_method")
    fractions = tuple(options.get("fractions", FRACTIONS))
    if (
        not fractions
        or list(fractions) != sorted(set(fractions))
        or not 0 < fractions[0] <= fractions[-1] <= 1
    ):
        raise InterbasisError(f"expected fractions that rise within (0, 1], received {list(fractions)}")
    evaluation = Evaluation(network, graph, data, metric)
    tracer = _Tracer(evaluation, options.get("ranking") or graph.edges, fractions, options.get("seed", 0))
    checkpoints = options.get("checkpoints", NO_CHECKPOINTS)
    everything = tuple(range(len(graph.edges)))
    ablated = [*((k,) for k in everything), everything]
    points = len(fractions) + 1
    with progress_bar(options.get("progress")) as advance:

        def curve(name: str) -> State:
            number = int(name)
            done = partial(_advance, advance, number * points, len(ablated) * points)
            checkpoint = checkpoints.checkpoint(f"curve.{number}", total=points)
            return {}, tracer.curve(ablated[number], checkpoint, done).model_dump(mode="json")

        states = options.get("team", ALONE).collected([str(k) for k in range(len(ablated))], curve)
    curves = [Curve.model_validate(values) for _, values in states.values()]
    return Curves(
        metric=evaluation.metric,
        baseline=evaluation.baseline.value,
        fractions=fractions,
        sections=dict(zip(graph.section_names, curves[:-1], strict=True)),
        whole=curves[-1],
        all_tokens=evaluation.all_tokens,
    )


def _advance(advance: Progress, before: int, steps: int, step: int) -> None:
    advance("curves", before + step, steps)


@dataclass(frozen=True, eq=False)
class _Tracer:
    evaluation: Evaluation
    ranking: Sequence[Tensor]
    fractions: tuple[float, ...]
    seed: int

    def curve(self, sections: tuple[int, ...], checkpoint: Checkpoint, done: Callable[[int], None]) -> Curve:
        losses, counts = checkpoint.tensors, []
        labelled = self.evaluation.baseline.counts
        for step, fraction in enumerate((0.0, *self.fractions)):
            kept = {k: round(fraction * self.possible(k)) for k in sections}
            counts.append(sum(min(count, self.candidates(k)) for k, count in kept.items()))
            if f"losses.{step}" not in losses:
                masks = {k: self.mask(k, count) for k, count in kept.items()}
                losses[f"losses.{step}"] = self.evaluation.edges(masks).losses
                checkpoint.save(step + 1, lambda: (losses, {}))
            done(step + 1)
        scores = [Score(self.evaluation.metric, losses[f"losses.{k}"], labelled) for k in range(len(counts))]
        return self._assemble(sections, counts[1:], scores)

    def possible(self, k: int) -> int:
        """Edges of the untruncated widths, the constant's left out."""
        graph = self.evaluation.graph
        width_in, width_out = graph.provenance.widths[k : k + 2]
        return width_out * (width_in - graph.layers[k].first_feature)

    def candidates(self, k: int) -> int:
        """Edges that there are between the features kept, the constant's left out."""
        return self.evaluation.graph.inner_edges(k).numel()

    def mask(self, k: int, count: int) -> Tensor:
        return top_edges(self.ranking[k], count, self.evaluation.graph.layers[k].constant)

    def _assemble(self, sections: tuple[int, ...], counts: list[int], scores: list[Score]) -> Curve:
        baseline = self.evaluation.baseline
        ks = torch.tensor((0.0, *self.fractions), dtype=torch.float64)

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
            sections=tuple(self.evaluation.graph.section_names[k] for k in sections),
            counts=tuple(counts),
            values=tuple(values[0, 1:-1].tolist()),
            faithfulness=tuple(faithfulness(values)[0, 1:].tolist()),
            without_edges=values[0, 0].item(),
            area=area(values).item(),
            distance=distance(values).item(),
            value_intervals=tuple(bootstrap.central(draws[:, point]) for point in range(1, len(ks))),
            area_interval=bootstrap.central(area(draws)),
            distance_interval=bootstrap.central(distance(draws)),
        )
