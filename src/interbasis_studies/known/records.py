"""Records of a scoreboard; reading them imports nothing that computes."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

from pydantic import Field

from interbasis.base.records import Measured, NonEmptyNames, Record

ScoredBasis = Literal[
    "lib", "jib", "gib", "pca", "ica", "neuron", "random", "unwhitened", "ceiling", "dictionary",
    "dictionary_lib", "dictionary_root", "dictionary_both",
]  # fmt: skip
SCORED: tuple[ScoredBasis, ...] = get_args(ScoredBasis)
TITLES: dict[ScoredBasis, str] = {
    "lib": "LIB", "jib": "JIB", "gib": "GIB", "pca": "PCA", "ica": "ICA", "neuron": "neurons",
    "random": "random rotation", "unwhitened": "LIB without whitening", "ceiling": "best rotation",
    "dictionary": "dictionary", "dictionary_lib": "dictionary in LIB's metric",
    "dictionary_root": "dictionary in its root", "dictionary_both": "dictionary in both metrics",
}  # fmt: skip
BREAKDOWN = 0.5
"""A score below it counts as broken down."""


class RecoveryScores(Record):
    """One basis of one known network. NaN where a score is not defined."""

    features: Measured = Field(description="Mean largest share of a feature in one part.")
    matched: Measured = Field(description="The same with features matched one-to-one to true features.")
    subspaces: Measured = Field(description="Mean squared cosine of the angles between parts and features.")
    coverage: Measured = Field(
        description="Share of the parts that a feature with a share of 0.9 stands for."
    )
    edge_precision: Measured = Field(description="Average precision of Ê for true interactions.")
    edge_auroc: Measured = Field(description="Area under the ROC curve of Ê for true interactions.")
    false_mass: Measured = Field(description="Share of Ê² on interactions that do not exist; 0 is best.")
    modules: Measured = Field(description="Adjusted mutual information of modules and parts.")
    modules_counted: Measured = Field(description="The same where Leiden is told how many modules there are.")
    module_count: Measured = Field(description="Modules found, divided by the number of parts.")
    effects: Measured = Field(description="What ablating a module costs its own part, minus the others.")
    cosine: Measured = Field(
        default=math.nan, description="Mean best cosine of a true feature's direction with one found."
    )
    correlation: Measured = Field(
        default=math.nan, description="Mean best correlation of a true feature's values with one found."
    )


class ScoreboardRequest(Record):
    """Axes, bases and seeds that are scored."""

    quick: bool = False
    """Fewer axes, values and samples: one or two minutes of processor time."""
    seeds: int = Field(5, ge=2)
    """Networks per setting; intervals are over them."""
    axes: NonEmptyNames | None = None
    """Comma-separated axes; default: all."""
    bases: NonEmptyNames | None = None
    """Comma-separated bases; default: all."""


class Estimate(Record):
    """A mean over seeds with its 95 % interval (Student's t)."""

    mean: Measured
    low: Measured
    high: Measured
    values: tuple[Measured, ...]
    """Per seed."""

    @classmethod
    def over_seeds(cls, values: Sequence[float]) -> "Estimate":
        from scipy import stats

        known = [value for value in values if not math.isnan(value)]
        if len(known) < 2:
            alone = known[0] if known else math.nan
            return cls(mean=alone, low=math.nan, high=math.nan, values=tuple(values))
        mean = math.fsum(known) / len(known)
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1))
        half = float(stats.t.ppf(0.975, len(known) - 1)) * spread / math.sqrt(len(known))
        return cls(mean=mean, low=mean - half, high=mean + half, values=tuple(values))


class Row(Record):
    """One basis at one value of one axis."""

    axis: str
    value: str
    basis: ScoredBasis
    scores: dict[str, Estimate]
    """By the names of the fields of `RecoveryScores`."""


class Scoreboard(Record):
    """All rows, in the order of the axes."""

    request: ScoreboardRequest
    versions: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The values of every axis."""
        names: dict[str, dict[str, None]] = {}
        for row in self.rows:
            names.setdefault(row.axis, {})[row.value] = None
        return {axis: tuple(values) for axis, values in names.items()}

    @property
    def bases(self) -> tuple[ScoredBasis, ...]:
        return tuple(dict.fromkeys(row.basis for row in self.rows))

    def estimate(self, axis: str, value: str, basis: str, name: str) -> Estimate | None:
        """A number of the board; None where it was not scored or is not defined."""
        found = (row for row in self.rows if (row.axis, row.value, row.basis) == (axis, value, basis))
        estimate = next((row.scores[name] for row in found), None)
        return None if estimate is None or math.isnan(estimate.mean) else estimate

    def is_defined(self, axis: str, name: str) -> bool:
        """Whether any basis has this score on this axis."""
        return any(
            self.estimate(axis, value, basis, name) for value in self.axes[axis] for basis in self.bases
        )

    def crossing(self, axis: str, basis: str, name: str = "modules") -> float | None:
        """Value at which the mean score falls below `BREAKDOWN`, by a straight line between its neighbours.

        None where values are no numbers, or where the score never falls from above.
        """
        points = []
        for value in self.axes[axis]:
            estimate = self.estimate(axis, value, basis, name)
            try:
                at = float(value.replace(",", ""))
            except ValueError:
                return None
            if estimate:
                points.append((at, estimate.mean))
        for (x, a), (y, b) in pairwise(points):
            if a >= BREAKDOWN > b:
                return x + (y - x) * (a - BREAKDOWN) / (a - b)
        return None

    def breakdown(self, axis: str, basis: str, name: str = "modules") -> str | None:
        """The first value of an axis at which the mean score is below `BREAKDOWN`; None if there is none."""
        for value in self.axes[axis]:
            estimate = self.estimate(axis, value, basis, name)
            if estimate and estimate.mean < BREAKDOWN:
                return value
        return None
