"""Comparison of a result with a baseline: changes of speed beyond noise."""

from pathlib import Path

from pydantic import ValidationError

from interbasis.base.errors import Explained, InterbasisError, first_problem
from interbasis_studies.bench.records import VERSION, BenchComparison, BenchResult, RatioChange

TOLERANCE = 0.25
"""Changes up to this are never flagged: caches and other work on the machine do as much."""
SPREADS = 3.0
"""Multiple of the spread of both measurements that is taken for noise, beyond that."""


def read_result(path: Path) -> BenchResult:
    """Read a result that `interbasis bench` wrote.

    Raises:
        InterbasisError: There is no such file, or it holds something else.
    """
    with Explained(
        f"expected a result of interbasis bench at {path}", OSError, remedy="run interbasis bench first"
    ):
        text = path.read_text(encoding="utf-8")
    try:
        result = BenchResult.model_validate_json(text)
    except ValidationError as error:
        raise InterbasisError(
            f"{path} is not a result of interbasis bench: {first_problem(error)}; run it again"
        ) from error
    if result.version != VERSION:
        raise InterbasisError(
            f"{path} was written by version {result.version} of the benchmark, this is "
            f"version {VERSION}; run it again"
        )
    return result


def compare(baseline: BenchResult, result: BenchResult) -> BenchComparison:
    """Compare the ratios that both have. Those to autograd are better when larger, others when smaller."""
    changes, shared = [], [name for name in result.ratios if name in baseline.ratios]
    for name in shared:
        before, now = baseline.ratios[name], result.ratios[name]
        factor = now.value / max(before.value, 1e-12)
        factor = 1 / max(factor, 1e-12) if name.startswith("autograd/") else factor
        allowed = 1 + TOLERANCE + SPREADS * (before.spread + now.spread)
        if factor > allowed or factor < 1 / allowed:
            ends = {"before": before.value, "now": now.value}
            changes.append(RatioChange(name=name, allowed=allowed, slower=factor > 1, **ends))
    return BenchComparison(changes=tuple(changes), compared=len(shared))
