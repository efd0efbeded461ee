"""Verdicts: a claim of the paper against the numbers found here.

Every rule is a function of plain numbers, with its bounds in sight; nothing is judged by eye. A claim whose
numbers are not there yet is open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Ruling = Literal["reproduced", "differs", "not reproduced", "open"]


@dataclass(frozen=True)
class Verdict:
    """What became of one claim."""

    claim: str
    """M1 … M8, C1 … C6."""
    statement: str
    paper: str
    here: str
    ruling: Ruling
    by: str = ""
    """How far the numbers are from the paper's, where they differ."""
    rule: str = ""
    """What decides."""


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def spread(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Smallest–largest, or the one value."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low}–{high}"


def open_verdict(claim: str, statement: str, paper: str, needs: str) -> Verdict:
    return Verdict(claim, statement, paper, "–", "open", rule=f"needs {needs}")
