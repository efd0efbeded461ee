"""Tables of the yardstick."""

from collections.abc import Sequence

from interbasis.analysis.yardstick.records import IntervalEstimate, RankCurve, YardstickResult
from interbasis.show.declared_tables import DeclaredTables
from interbasis.show.tables import MISSING, Parts, ResultTable, result_tables

SHARES_SHOWN = (0.25, 0.5, 0.75)
"""Shares of the directions at which rises are shown."""
TABLES = DeclaredTables("yardstick_tables.toml")


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
        parts.append(TABLES("learnt", [(row, row.place or "all") for row in result.learnt]))
    if result.correlations:
        effects = ((row, result.effect_per_variance(row.method)) for row in result.correlations)
        parts.append(TABLES("correlations", effects))
    if result.mean_jacobians:
        shares = ((row, "yes" if row.mixes_positions else "") for row in result.mean_jacobians)
        parts.append(TABLES("mean_jacobians", shares))
    for network in ("trained", "shuffled", "redrawn"):
        if counts := [row for row in result.edges if row.network == network]:
            parts.append(TABLES("edges", counts, network=network))
    if result.stability:
        parts.append(TABLES("stability", result.stability))
    return [*parts, TABLES("costs", result.costs)]


def rank_table(curves: Sequence[RankCurve]) -> ResultTable:
    """Areas, ranks and rises of every method at every place."""
    rows = []
    for curve in curves:
        within = (curve.within[tolerance] for tolerance in ("0.1", "0.01"))
        rises = (_rise_at(curve, share) for share in SHARES_SHOWN)
        rows.append((curve, curve.place or "all", *within, *rises))
    return TABLES("ranks", rows)


def removed_table(curves: Sequence[RankCurve]) -> ResultTable:
    """Rises with the leading directions removed."""
    counts = sorted({count for curve in curves for count in curve.removed})
    rows = []
    for curve in curves:
        rises = dict(zip(curve.removed, curve.removed_rises, strict=True))
        cells = [interval(rises[count], 3) if count in rises else MISSING for count in counts]
        rows.append([curve.place or "all", curve.method, *cells])
    head = ["layer", "method", *(f"without {count}" for count in counts)]
    note = "Rise of the cross-entropy without the first directions, all others kept; larger is better.\n"
    return ResultTable.from_cells("Leading directions removed", head, rows, note, text=("method",))


def interval(estimate: IntervalEstimate | None, digits: int) -> str:
    """A number with its interval in brackets."""
    if estimate is None or estimate.value != estimate.value:
        return MISSING
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


def _rise_at(curve: RankCurve, share: float) -> IntervalEstimate:
    """Rise at the number of directions kept that is nearest to a share."""
    width = curve.kept[-1]
    nearest = min(range(len(curve.kept)), key=lambda k: abs(curve.kept[k] / width - share))
    return curve.rises[nearest]
