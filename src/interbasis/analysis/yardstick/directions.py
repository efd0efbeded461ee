"""The row of single directions: does what a method ranks by predict the effect of dropping a direction?

Direction j of a place is put at its mean, all others are kept. What that removes, δ = x − x̂, has the
variance E‖δ‖², and E[δᵀGδ] in LIB's metric G, which is Λ_j for LIB's own directions: LIB's prediction, made
without looking at the output. Both are compared with the rise of the cross-entropy and the divergence by
rank correlation (Spearman) over all directions of all places and within each, with bootstrap intervals over
the test samples.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from interbasis.analysis.yardstick.measure import Measurement, Point, estimate
from interbasis.analysis.yardstick.records import DirectionCorrelations, DirectionEffects, IntervalEstimate


def single_points(layer: int, directions: int) -> list[Point]:
    """All directions but one, for each of them; at the end, none of them."""
    alone = ~torch.eye(directions, dtype=torch.bool)
    none = torch.zeros(1, directions, dtype=torch.bool)
    return [{layer: keep} for keep in torch.cat([alone, none])]


def direction_effects(method: str, place: str, measured: Measurement, has_metric: bool) -> DirectionEffects:
    """Effects of the directions of a place, from the measurement of `single_points`."""
    tokens = measured.counts.sum()
    losses = measured.losses.sum(1) / tokens
    predictions = measured.metric_errors[:-1].tolist() if has_metric else []
    return DirectionEffects(
        method=method,
        place=place,
        variances=tuple((measured.errors[:-1] / measured.errors[-1]).tolist()),
        predictions=tuple(predictions),
        rises=tuple((losses[1:-1] - losses[0]).tolist()),
        divergences=tuple((measured.divergences.sum(1) / tokens)[:-1].tolist()),
    )


def direction_correlations(
    method: str, measured: Mapping[str, Measurement], has_metric: bool, seed: int
) -> DirectionCorrelations:
    """Correlations over the directions of all places, from the measurements of one method."""
    parts = list(measured.values())
    rises = [part.rises(seed)[:, :-1] for part in parts]  # [1 + draws, directions] each
    divergences = [part.mean_divergences(seed)[:, :-1] for part in parts]
    variances = [part.errors[:-1] / part.errors[-1] for part in parts]
    predictions = [part.metric_errors[:-1] for part in parts]

    def over_all(effects: list[Tensor], predicted: list[Tensor]) -> IntervalEstimate:
        return estimate(spearman(torch.cat(effects, 1), torch.cat(predicted)))

    def within(predicted: list[Tensor]) -> IntervalEstimate:
        pairs = zip(divergences, predicted, strict=True)
        return estimate(torch.stack([spearman(*pair) for pair in pairs]).mean(0))

    return DirectionCorrelations(
        method=method,
        directions=sum(map(len, variances)),
        rise_by_variance=over_all(rises, variances),
        rise_by_prediction=over_all(rises, predictions) if has_metric else None,
        divergence_by_variance=over_all(divergences, variances),
        divergence_by_prediction=over_all(divergences, predictions) if has_metric else None,
        within_by_variance=within(variances),
        within_by_prediction=within(predictions) if has_metric else None,
    )


def spearman(rows: Tensor, other: Tensor) -> Tensor:  # [draws, n], [n] -> [draws]
    """Rank correlation of every row with a vector; equal numbers share the mean of their ranks."""
    x, y = _ranks(rows), _ranks(other[None])
    x, y = x - x.mean(1, keepdim=True), y - y.mean()
    return (x * y).sum(1) / (x.square().sum(1) * y.square().sum()).sqrt()


def _ranks(rows: Tensor) -> Tensor:  # [draws, n]
    ordered = rows.sort(1).values.contiguous()
    below = torch.searchsorted(ordered, rows.contiguous())
    up_to = torch.searchsorted(ordered, rows.contiguous(), right=True)
    return (below + up_to).double() / 2
