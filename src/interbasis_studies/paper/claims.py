"""Claims of the paper and verdicts on them.

Every rule is a function of plain numbers, with its bounds in sight; nothing is judged by eye. A claim whose
numbers are not there yet is open.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Ruling = Literal["reproduced", "differs", "not reproduced", "open"]


@dataclass(frozen=True)
class Verdict:
    """Verdict on one claim."""

    claim: str
    """M1 … M8, C1 … C6, L1 … L5."""
    statement: str
    paper: str
    here: str
    ruling: Ruling
    by: str
    """Distance of the numbers from the paper's, where they differ."""
    rule: str
    """The rule that decides."""


@dataclass(frozen=True)
class PaperClaim:
    """A claim of the paper."""

    name: str
    statement: str
    paper: str
    """The paper's numbers."""
    rule: str
    """When it counts as reproduced."""
    needs: str
    """The results that it is judged by."""

    def judge(self, here: str, reproduced: bool, differs: bool, by: str) -> Verdict:
        """A verdict; what is neither reproduced nor differs is not reproduced."""
        ruling: Ruling = "reproduced" if reproduced else "differs" if differs else "not reproduced"
        return Verdict(
            self.name, self.statement, self.paper, here, ruling, "" if reproduced else by, self.rule
        )

    def open(self) -> Verdict:
        return Verdict(self.name, self.statement, self.paper, "–", "open", "", f"needs {self.needs}")

    def decide(self, rule: Callable[..., Verdict], *columns: Collection[object]) -> Verdict:
        """Apply the rule to these numbers; open if a column of them is empty."""
        return rule(*columns) if all(columns) else self.open()


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def spread(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Smallest–largest, or the one value."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low}–{high}"
