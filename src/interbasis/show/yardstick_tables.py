"""Tables of the yardstick."""

from collections.abc import Sequence

from interbasis.analysis.yardstick.records import (
    Agreement,
    IntervalEstimate,
    LearntDifference,
    MeanJacobianShare,
    MethodCost,
    NeededEdges,
    RankCurve,
    YardstickResult,
)
from interbasis.show.tables import MISSING, Cell, Parts, ResultTable, result_tables

SHARES_SHOWN = (0.25, 0.5, 0.75)
"""Shares of the directions at which rises are shown."""


@result_tables.register
def yardstick_tables(result: YardstickResult) -> Parts:
    """All rows of a comparison as tables."""
    parts: Parts = [
        f"\nYardstick · {result.model} · fitted on {result.samples:,} samples, tested on "
        f"{result.test_samples:,} · cross-entropy {result.baseline:.4f}\n"
    ]
    trained = [curve for curve in result.curves if curve.network == "trained"]
    if trained:
        parts.append(rank_table(trained))
    if any(curve.removed for curve in trained):
        parts.append(removed_table(trained))
    if result.learnt:
        parts.append(learnt_table(result.learnt))
    if result.correlations:
        parts.append(correlation_table(result))
    if result.mean_jacobians:
        parts.append(mean_jacobian_table(result.mean_jacobians))
    for network in ("trained", "shuffled", "redrawn"):
        if counts := [row for row in result.edges if row.network == network]:
            parts.append(edge_table(network, counts))
    if result.stability:
        parts.append(stability_table(result.stability))
    parts.append(cost_table(result.costs))
    return parts


def rank_table(curves: Sequence[RankCurve]) -> ResultTable:
    """Areas, ranks and rises of every method at every place."""
    head = ["layer", "method", "directions", "area", "first − this", "within 0.1", "within 0.01"]
    head += [f"rise, {share:.0%} kept" for share in SHARES_SHOWN]
    rows = [
        [
            place_name(curve), curve.method, f"{curve.directions} of {curve.width}", interval(curve.area, 3),
            MISSING if curve.area_advantage is None else interval(curve.area_advantage, 3),
            *(interval(curve.within[tolerance], 0) for tolerance in ("0.1", "0.01")),
            *(_rise_at(curve, share) for share in SHARES_SHOWN),
        ]
        for curve in curves
    ]  # fmt: skip
    note = (
        "Area: under the curve of the cross-entropy recovered, against the share of directions kept; larger "
        "is better. First − this: the first method's area minus this one's, on the same samples. Within: "
        "directions that keep the cross-entropy within a tolerance, interpolated between those tried. Rises "
        "are of the cross-entropy. In brackets 95 % bootstrap intervals over the test samples.\n"
    )
    return ResultTable.from_cells("Leading directions kept", head, rows, note, text=("method",))


def removed_table(curves: Sequence[RankCurve]) -> ResultTable:
    """Rises with the leading directions removed."""
    counts = sorted({count for curve in curves for count in curve.removed})
    rows = []
    for curve in curves:
        rises = dict(zip(curve.removed, curve.removed_rises, strict=True))
        cells = [interval(rises[count], 3) if count in rises else MISSING for count in counts]
        rows.append([place_name(curve), curve.method, *cells])
    head = ["layer", "method", *(f"without {count}" for count in counts)]
    note = "Rise of the cross-entropy without the first directions, all others kept; larger is better.\n"
    return ResultTable.from_cells("Leading directions removed", head, rows, note, text=("method",))


def learnt_table(rows: Sequence[LearntDifference]) -> ResultTable:
    """Differences from networks that learnt nothing."""
    cells = [[row.place or "all", row.method, row.network, interval(row.area, 3)] for row in rows]
    note = (
        "Area under the curve of the divergence recovered, of the trained network minus that of a network "
        "with other weights, each measured against its own outputs. Above 0: fewer directions do more in the "
        "trained network.\n"
    )
    head = ["layer", "method", "network", "trained − network"]
    return ResultTable.from_cells("Learnt or not", head, cells, note, text=("method", "network"))


def correlation_table(result: YardstickResult) -> ResultTable:
    """Rank correlations of the effects of single directions with their predictions."""
    head = ["method", "directions"]
    head += [f"{effect} by {measure}" for effect in ("rise", "divergence") for measure in ("variance", "Λ")]
    head += ["within layers by variance", "by Λ", "effect"]
    cells: list[list[Cell]] = [
        [
            row.method, row.directions,
            interval(row.rise_by_variance, 3), interval(row.rise_by_prediction, 3),
            interval(row.divergence_by_variance, 3), interval(row.divergence_by_prediction, 3),
            interval(row.within_by_variance, 3), interval(row.within_by_prediction, 3),
            result.effect_per_variance(row.method),
        ]
        for row in result.correlations
    ]  # fmt: skip
    note = (
        "Rank correlation, over all directions of all layers, of the effect of dropping a direction alone "
        "with the share of variance that this removes, and with the same in LIB's metric, which is Λ for "
        "LIB's directions; within layers: of the divergence, mean over layers. Effect: divergence over the "
        "share of variance, summed over the first 8 directions of every layer.\n"
    )
    return ResultTable.from_cells("Single directions", head, cells, note)


def mean_jacobian_table(rows: Sequence[MeanJacobianShare]) -> ResultTable:
    """Shares of the mean in LIB's Jacobians."""
    cells = [
        [f"{row.source} → {row.target}", row.share, "yes" if row.mixes_positions else ""] for row in rows
    ]
    note = "‖E J‖² over E‖J‖²; where positions mix, of the mean at the output's own position.\n"
    head = ["section", "share", "mixes positions"]
    return ResultTable.from_cells("Mean of the Jacobian", head, cells, note, text=("mixes positions",))


def edge_table(network: str, rows: Sequence[NeededEdges]) -> ResultTable:
    """Edges needed in every basis of one network."""
    head = ["section", "basis", "labels", "robust edges", "plain", "of", "area", "metric", "without edges"]
    cells: list[list[Cell]] = [
        [
            f"{row.source} → {row.target}", row.method, row.labels, row.robust,
            "{:,} ({:,} to {:,})".format(row.required, *row.interval), row.possible, interval(row.area, 3),
            f"{row.baseline:.4f}", f"{row.without_edges:.4f}",
        ]
        for row in rows
    ]  # fmt: skip
    note = (
        "Robust edges: no mask found within the rest misses the limit; plain: with all others removed at "
        "once. Labels: of the data, or drawn from the network's own outputs, where the rise of the "
        "cross-entropy is the divergence from them. Area: under the faithfulness curve. In brackets 95 % "
        "bootstrap intervals over the test samples.\n"
    )
    title = f"Edges required, {network} network"
    return ResultTable.from_cells(title, head, cells, note, text=("basis", "labels"))


def stability_table(rows: Sequence[Agreement]) -> ResultTable:
    """Agreement of fits on halves of the data, and of seeds."""
    cells = [
        [
            row.place,
            row.method,
            row.compared,
            str(row.directions),
            interval(row.subspace, 3),
            interval(row.matched, 3),
        ]
        for row in rows
    ]
    note = (
        "Two fits: on the first and the second half of the data, or of this network and one of another seed. "
        "Subspace: mean squared canonical correlation of the leading directions' values; matched: mean "
        "correlation over the best one-to-one matching. 1 is full agreement.\n"
    )
    head = ["layer", "method", "compared", "directions", "subspace", "matched"]
    return ResultTable.from_cells("Stability", head, cells, note, text=("method", "compared"))


def cost_table(costs: Sequence[MethodCost]) -> ResultTable:
    """Processor time of every fit."""
    rows = [
        [cost.method, cost.network, f"{cost.forward_passes:.1f}", f"{cost.processor_seconds:.1f}"]
        for cost in costs
    ]
    note = (
        "In forward passes over the data that methods are fitted on. Statistics that several methods share "
        "are counted for the one that was fitted first.\n"
    )
    return ResultTable.from_cells(
        "Cost of the fit",
        ["method", "network", "forward passes", "processor seconds"],
        rows,
        note,
        text=("network",),
    )


def place_name(curve: RankCurve) -> str:
    """Name of a curve's place."""
    return curve.place or "all"


def interval(estimate: IntervalEstimate | None, digits: int) -> str:
    """A number with its interval in brackets."""
    if estimate is None or estimate.value != estimate.value:
        return MISSING
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


def _rise_at(curve: RankCurve, share: float) -> str:
    """Rise at the number of directions kept that is nearest to a share."""
    width = curve.kept[-1]
    nearest = min(range(len(curve.kept)), key=lambda k: abs(curve.kept[k] / width - share))
    return interval(curve.rises[nearest], 3)
