"""A result beside a baseline: what became slower or faster beyond noise."""

from pathlib import Path

from pydantic import ValidationError

from interbasis.base.errors import InterbasisError, first_problem
from interbasis_studies.bench.records import VERSION, BenchResult, Change, Comparison, Measure

TOLERANCE = 0.25
"""Changes up to this are never flagged: caches and other work on the machine do as much."""
SPREADS = 3.0
"""How many times the spread of both measurements is taken for noise, beyond that."""


def read_result(path: Path) -> BenchResult:
    """A result that `interbasis bench` wrote.

    Raises:
        InterbasisError: There is no such file, or it holds something else.
    """
    try:
        result = BenchResult.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InterbasisError(
            f"expected a result of interbasis bench at {path} ({error.strerror}); run interbasis bench first"
        ) from error
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


def compare(baseline: BenchResult, result: BenchResult) -> Comparison:
    """Ratios that both have. Those to autograd are better when larger, all others when smaller."""
    changes, shared = [], [name for name in result.ratios if name in baseline.ratios]
    for name in shared:
        before, now = baseline.ratios[name], result.ratios[name]
        factor, allowed = _slowdown(name, before, now), _allowed(before, now)
        if factor > allowed or factor < 1 / allowed:
            changes.append(
                Change(name=name, before=before.value, now=now.value, allowed=allowed, slower=factor > 1)
            )
    return Comparison(changes=tuple(changes), compared=len(shared))


def _slowdown(name: str, before: Measure, now: Measure) -> float:
    factor = now.value / max(before.value, 1e-12)
    return 1 / max(factor, 1e-12) if name.startswith("autograd/") else factor


def _allowed(before: Measure, now: Measure) -> float:
    return 1 + TOLERANCE + SPREADS * (before.spread + now.spread)
