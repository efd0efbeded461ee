"""Curves of the metric against the fraction of edges kept, without a threshold, and their areas.

With m(k) the metric when the fraction k of the edges is kept, m(∅) with none but the constant's and m the
original model's, the faithfulness is F(k) = (m(k) − m(∅)) / (m − m(∅)). The areas are those of the MIB
benchmark, by the trapezoid rule from k = 0, where F is 0, to 1:

    area = ∫ F dk          larger is better: few edges do much
    distance = ∫ |1 − F| dk     smaller is better: few edges do the same as all.

The fraction is that of all d_out·(d_in − 1) edges of the untruncated widths, the constant's left out, so that
bases that dropped different numbers of features are compared at equal numbers of edges.

How sparse interactions are, without a threshold and without ablating anything.

Each output feature's edges are divided by their norm, e_ij = Ê_ij / ‖Ê_i‖, so that features of different
scale count alike; edges of the constant are left out. Per section:

    participation  mean over i of (Σ_j e²)² / Σ_j e⁴: how many inputs an output feature effectively has
    gini, hoyer    inequality of all e_ij: 0 if all are equal, towards 1 if few are all there is
    share_above    part of the e_ij above 0.5, 1, 2, 4 %
    kurtosis       of all e_ij about 0, E[e⁴] / E[e²]²: 1 if all are equal, large if a few stand out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasis.analysis.ablation import bootstrap
from interbasis.analysis.ablation.evaluation import Evaluation, Score
from interbasis.analysis.ablation.masked_pass import top_edges
from interbasis.analysis.ablation.records import Curve, Curves, Sparsity
from interbasis.analysis.workspace import collect_records
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import Progress, progress_bar
from interbasis.base.records import Metric
from interbasis.compute.checkpoints import NO_CHECKPOINTS, Checkpoint, Checkpoints, State
from interbasis.compute.team import ALONE, Team
from interbasis.data.batches import Data
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.network.network import Network

LEVELS = (0.005, 0.01, 0.02, 0.04)


def interaction_sparsity(graph: InteractionGraph) -> list[Sparsity]:
    """Measures of every section of a graph, in the network's order."""
    sections = []
    for k in range(len(graph.edges)):
        source, target = graph.layers[k], graph.layers[k + 1]
        sections.append(_measure(source.name, target.name, normalised(graph.inner_edges(k).double())))
    return sections


def normalised(edges: Tensor) -> Tensor:  # [r_out, r_in] -> [rows that are not 0, r_in]
    norms = edges.norm(dim=1, keepdim=True)
    return (edges / norms)[norms[:, 0] > 0]


def _measure(source: str, target: str, e: Tensor) -> Sparsity:
    """Measures of a section's edges e [r_out, r_in]; NaN where there are none."""
    values = e.flatten().sort().values
    count = len(values)
    ranks = torch.arange(1, count + 1, dtype=torch.float64)
    squares = values.square()
    spread = count**0.5 - (values.sum() / squares.sum().sqrt()).item()
    return Sparsity(
        source=source,
        target=target,
        participation=(1 / e.pow(4).sum(1)).mean().item(),
        gini=((2 * ranks - count - 1) @ values / (count * values.sum())).item(),
        hoyer=spread / (count**0.5 - 1) if count != 1 else 1.0,
        share_above=tuple((values > level).double().mean().item() for level in LEVELS),
        kurtosis=(squares.square().mean() / squares.mean().square()).item(),
    )


FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


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
    checkpoints: Checkpoints = NO_CHECKPOINTS,
    team: Team = ALONE,
) -> Curves:
    """Measure the metric at fractions of the edges kept, per section and for the whole network.

    Args:
        network: The network that the graph was built for.
        graph: A graph with edges, the largest of which are kept.
        data: As for `edges_required`.
        metric: As for `edges_required`.
        fractions: Fractions of the edges kept, rising.
        ranking: A matrix per section, of the shape of its edges, to rank them by; default: Ê.
        seed: Seed of the bootstrap.
        progress: Show progress.
        checkpoints: Where unfinished work is stored.
        team: Processes that share the curves.

    Returns:
        A curve per section and one of all sections at once, with 95 % bootstrap intervals.

    Raises:
        InterbasisError: The graph has no edges, or fractions do not rise within (0, 1].
    """
    fractions = tuple(fractions)
    rising = list(fractions) == sorted(set(fractions))
    if not fractions or not rising or not 0 < fractions[0] <= fractions[-1] <= 1:
        raise InterbasisError(f"expected fractions that rise within (0, 1], received {list(fractions)}")
    evaluation = Evaluation(network, graph, data, metric)
    tracer = _CurveTracer(evaluation, ranking or graph.edges, fractions, seed)
    everything = tuple(range(len(graph.edges)))
    ablated = {str(k): (k,) for k in everything} | {str(len(everything)): everything}
    points = len(fractions) + 1
    with progress_bar(progress) as advance:

        def curve(number: str) -> Curve:
            def step(done: int) -> None:
                advance("curves", int(number) * points + done, len(ablated) * points)

            checkpoint = checkpoints.checkpoint(f"curve.{number}", total=points)
            return tracer.curve(ablated[number], checkpoint, step)

        curves = list(collect_records(team, list(ablated), curve, Curve).values())
    return Curves(
        metric=evaluation.metric,
        baseline=evaluation.baseline.value,
        fractions=fractions,
        sections=dict(zip(graph.section_names, curves[:-1], strict=True)),
        whole=curves[-1],
        all_tokens=evaluation.all_tokens,
    )


@dataclass(frozen=True, eq=False)
class _CurveTracer:
    evaluation: Evaluation
    ranking: Sequence[Tensor]
    fractions: tuple[float, ...]
    seed: int

    def curve(self, sections: tuple[int, ...], checkpoint: Checkpoint, step: Callable[[int], None]) -> Curve:
        """The curve of sections that are ablated at once; losses at every fraction are remembered."""
        graph, baseline = self.evaluation.graph, self.evaluation.baseline

        def point(fraction: float) -> tuple[int, Score]:
            kept = {}
            for k in sections:  # of all edges between the untruncated widths, the constant's left out
                width_in, width_out = graph.provenance.widths[k : k + 2]
                kept[k] = round(fraction * (width_out * (width_in - graph.layers[k].first_feature)))

            def evaluate() -> State:
                masks = {k: top_edges(self.ranking[k], kept[k], graph.layers[k].constant) for k in sections}
                return {"losses": self.evaluation.edges(masks).losses}, {}

            tensors, _ = checkpoint.remember(str(fraction), evaluate)
            count = sum(min(count, graph.inner_edges(k).numel()) for k, count in kept.items())
            return count, Score(baseline.metric, tensors["losses"], baseline.counts)

        counts, scores = [], []
        for done, fraction in enumerate((0.0, *self.fractions), 1):
            count, score = point(fraction)
            counts.append(count)
            scores.append(score)
            step(done)
        return self._assemble(sections, counts[1:], scores)

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
        draws = torch.cat(list(bootstrap.resampled(measured, bootstrap.DRAWS, self.seed)))
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
