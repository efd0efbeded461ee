"""Records of what ablations measure; reading them imports nothing that computes."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from interbasis.base.errors import InterbasisError
from interbasis.base.records import Basis, Measured, Metric, Record, require

Interval = tuple[Measured, Measured]
Fraction = Annotated[float, Field(gt=0, le=1)]


class ToleranceError(InterbasisError):
    """A tolerance that cannot be met."""


class Trial(Record):
    """One mask that was tried."""

    kept: int
    """Edges (or features) that it keeps."""
    value: float
    """The metric; of a trial that is not complete, a bound that the metric cannot be better than."""
    passed: bool
    complete: bool = True
    """Whether all samples were evaluated, so that the value is a measurement and not a bound."""


class RobustCount(Record):
    """Number of edges to keep so that no mask found within the others costs more than the tolerance."""

    level: float
    """ρ: how far unneeded edges may be switched back on, from 0, not at all, to 1, fully."""
    count: int
    """The fewest edges on a logarithmic grid that no mask found breaks."""
    plain: int
    """The bisection's count, where all unneeded edges are ablated."""
    worst_at_plain: float
    """The metric with the worst mask found within what the plain count leaves out, over all data."""
    worst_per_input: float
    """The metric with a mask of its own for every input, over the samples on which masks were sought."""
    worst_at_count: float
    """The metric with the worst mask found within what ``count`` leaves out."""
    limit: float
    """Limit that the metric had to meet."""
    starts: int
    steps: int
    ascent_samples: int
    """Samples on which masks were sought."""


class EdgesRequired(Record):
    """The fewest edges of one section that keep the metric."""

    source: str
    target: str
    count: int
    """Edges kept by the accepted mask, the constant's not counted."""
    possible: int
    """Edges between the kept features of the two layers, the constant's not counted."""
    epsilon: float
    """ε, the smallest edge Ê that the accepted mask keeps; where it keeps none, the largest there is."""
    value: float
    """The metric with the accepted mask."""
    stable_count: int | None
    """The smallest count from which every larger one on a logarithmic grid passes; None if not asked for."""
    interval: tuple[int, int] | None
    """95 % bootstrap interval of the count; None if not asked for."""
    trials: tuple[Trial, ...]
    """All masks tried, by the number of edges kept."""
    robust: RobustCount | None = None
    """The count that no mask found breaks; None if not asked for."""

    @property
    def name(self) -> str:
        return f"{self.source} → {self.target}"

    @property
    def headline(self) -> int:
        """The robust count; where none was sought, the plain one."""
        return self.count if self.robust is None else self.robust.count

    @property
    def measured(self) -> tuple[Trial, ...]:
        """The trials whose value is a measurement and not a bound."""
        return tuple(trial for trial in self.trials if trial.complete)

    @property
    def kept_fraction(self) -> float:
        """Share of the edges there are; 0 where there are none."""
        return self.count / self.possible if self.possible else 0.0


class NodesRequired(Record):
    """The fewest features of one layer that keep the metric, the constant counted."""

    layer: str
    count: int | None
    """Features required; None where even all of them miss the limit."""
    features: int
    trials: tuple[Trial, ...]


class Curve(Record):
    """The metric against the fraction of edges kept, in one section or in all at once."""

    sections: tuple[str, ...]
    """The sections that were ablated, by their source layers."""
    counts: tuple[int, ...]
    """Edges kept at each fraction, at most those that the graph has."""
    values: tuple[float, ...]
    faithfulness: tuple[Measured, ...]
    """NaN, and so the areas, where the model does no better than with no edges at all."""
    without_edges: float
    """The metric with no edges except those of the constant."""
    area: Measured
    """Area under the faithfulness curve."""
    distance: Measured
    """Area between the faithfulness curve and 1."""
    value_intervals: tuple[Interval, ...]
    """95 % bootstrap intervals over the samples."""
    area_interval: Interval
    distance_interval: Interval

    @model_validator(mode="after")
    def _one_value_per_fraction(self) -> Self:
        lengths = {len(column) for column in (self.counts, self.values, self.faithfulness)}
        require(lengths == {len(self.value_intervals)}, "the columns of a curve differ in length")
        return self


class Curves(Record):
    """The curves of every section, and of all sections ablated at once."""

    metric: Metric
    baseline: float
    fractions: Annotated[tuple[Fraction, ...], Field(min_length=1)]
    sections: dict[str, Curve]
    """Curve of every section, by the name of its source layer."""
    whole: Curve
    """All sections ablated at once, each to the same fraction."""
    all_tokens: bool = True
    """Whether masks acted on all tokens; if not, those that the build left out stayed as they are."""

    @model_validator(mode="after")
    def _every_curve_has_all_fractions(self) -> Self:
        lengths = {len(curve.values) for curve in (*self.sections.values(), self.whole)}
        require(lengths == {len(self.fractions)}, "a curve does not have a value for every fraction")
        return self


class Sparsity(Record):
    """Sparsity of the edges of one section, without a threshold."""

    source: str
    target: str
    participation: Measured
    gini: Measured
    hoyer: Measured
    share_above: tuple[Measured, ...]
    """Share of edges above 0.5, 1, 2 and 4 % of their output feature's norm."""
    kurtosis: Measured


class Stress(Record):
    """Metric with parts of the unneeded edges of one section ablated."""

    unneeded: int
    """Edges of the graph that the accepted mask leaves out."""
    all_ablated: float
    """The metric with all of them ablated: the accepted mask."""
    halves: tuple[float, ...]
    """The metric with random halves of them ablated."""
    worst_half: float
    """The metric with the worst half that the search met ablated."""
    limit: float
    """Limit that the metric had to meet."""
    failed: int
    """Halves tried, random or not, that do not meet it."""
    tried: int


class RequiredCount(Record):
    """Edges required of one section: the bisection's count, and the stable one."""

    count: int
    stable_count: int | None


class Control(Record):
    """One row of the table of controls; sections by the names of their source layers."""

    name: str
    basis: Basis
    network: Literal["trained", "shuffled", "reinitialised"]
    ranking: Literal["Ê", "random"]
    curves: Curves
    sparsity: dict[str, Sparsity] = Field(default_factory=dict)
    required: dict[str, RequiredCount] = Field(default_factory=dict)
    stress: dict[str, Stress] = Field(default_factory=dict)
