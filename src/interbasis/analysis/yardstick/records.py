"""Records of the yardstick: its request, its rows and its result."""

from typing import Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from interbasis.base.records import Dtype, Measured, Metric, Names, NonEmptyNames, Record, require

Row = Literal["rank", "learnt", "directions", "mean-jacobian", "edges", "stability"]
ROWS: tuple[Row, ...] = get_args(Row)
NetworkKind = Literal["trained", "shuffled", "redrawn"]
LabelKind = Literal["data", "own"]

TOLERANCES = (0.1, 0.01)
"""Rises of the cross-entropy within which ranks are sought."""


class YardstickRequest(Record):
    """Methods, rows and settings of a comparison."""

    methods: NonEmptyNames = ("lib", "pca", "random", "neuron")
    """Comma-separated methods: lib, gib, jib, pca, neuron, random, weight-svd, activation-svd, slicing. All
    are compared with the first."""
    rows: NonEmptyNames = ("rank",)
    """Comma-separated rows: rank; learnt, the same on networks with shuffled and redrawn weights; directions,
    every direction dropped alone; mean-jacobian, the share of the mean in LIB's Jacobians; edges, counts and
    curves of every basis; stability, agreement of fits on halves of the data, and with --twin of seeds."""
    layers: Names = ()
    """Comma-separated node layers; NAME:read is the part that only weights read; default: all but the last,
    and without those that hold a variance."""
    alone: Names = ()
    """Comma-separated layers, out of these, that are replaced one by one as well; default: all of them."""
    ranks: Names = ()
    """Comma-separated numbers of directions kept; default: 0, 1, 2, 4 and multiples of an eighth."""
    removed: Names = ("1", "2", "4", "8")
    """Comma-separated numbers of leading directions removed; "" for none."""
    together: bool = True
    """Also keep the same share of the directions in all layers at once."""
    direction_samples: int | None = Field(None, ge=1)
    """Test samples on which directions are dropped one by one; default: all."""
    jacobian_samples: int | None = Field(None, ge=1)
    """First samples of the data over which Jacobians are averaged; default: all."""
    jacobian_queries: int | None = Field(None, ge=2)
    """Query positions sampled per sequence in attention's Jacobians; default: all."""
    jacobian_sources: int | None = Field(None, ge=1)
    """Stochastic sources over output positions where no closed form is known, as for gib; default: exact."""
    edge_samples: int | None = Field(None, ge=1)
    """First samples of the data over which edges are averaged; default: those of the Jacobians."""
    edge_tests: int | None = Field(None, ge=1)
    """First test samples on which edges are removed; default: all."""
    norm_limit: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Tokens whose norm exceeds this many times the median of their layer count in no basis and are not
    replaced; 0 is no limit. Default: 3 for language models, else 0."""
    dtype: Dtype | None = None
    """float64 or float32, in which the network computes; default: by model family."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Random seed of methods, scrambled networks and bootstrap."""

    @field_validator("ranks", "removed")
    @classmethod
    def _check_numbers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        require(all(text.isdecimal() for text in value), "expected whole numbers separated by commas")
        return value

    @field_validator("rows")
    @classmethod
    def _check_rows(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        require(set(value) <= set(ROWS), f"expected rows of {', '.join(ROWS)}")
        return value


class IntervalEstimate(Record):
    """A number with its 95 % bootstrap interval over the test samples."""

    value: Measured
    low: Measured
    high: Measured


class RankCurve(Record):
    """Effect of keeping the leading directions of one method at one place, or at all places together.

    Rises are of the cross-entropy of the labels over the original network's, divergences Kullback–Leibler
    divergences from the original network's outputs, in nats per token or sample.
    """

    network: NetworkKind
    method: str
    place: str
    """Name of the place; empty for all places together."""
    width: int
    """Directions that there are in all."""
    directions: int
    """Directions that the method has; further ones stay at their mean."""
    kept: tuple[int, ...]
    rises: tuple[IntervalEstimate, ...]
    divergences: tuple[IntervalEstimate, ...]
    variance_kept: tuple[Measured, ...]
    """Share of the variance that the kept directions reconstruct."""
    area: IntervalEstimate
    """∫ (L(0) − L(k)) / (L(0) − L) dk over shares k of the directions, L the cross-entropy and L(0) the first
    method's; 1 if one direction does it all, below 0 if keeping directions is worse than keeping none."""
    divergence_area: IntervalEstimate
    """The same for the divergence, ∫ 1 − KL(k) / KL(0) dk."""
    within: dict[str, IntervalEstimate]
    """Directions that keep the cross-entropy within a tolerance, by the tolerance; between the numbers tried,
    by linear interpolation. NaN where all directions are not enough."""
    removed: tuple[int, ...]
    """Leading directions removed, all others kept."""
    removed_rises: tuple[IntervalEstimate, ...]
    removed_divergences: tuple[IntervalEstimate, ...]
    area_advantage: IntervalEstimate | None = None
    """Area of the first method minus this one's, on the same samples; None for the first method."""
    rise_excesses: tuple[IntervalEstimate, ...] = ()
    """Rises of this method minus the first one's, at each number kept, on the same samples."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        points = {len(self.rises), len(self.divergences), len(self.variance_kept), len(self.kept)}
        require(len(points) == 1, "a curve has one value for every number of directions kept")
        return self


class LearntDifference(Record):
    """Divergence areas of the trained network minus those of a network that learnt nothing."""

    network: NetworkKind
    method: str
    place: str
    area: IntervalEstimate


class DirectionEffects(Record):
    """Directions of one method at one place, each dropped alone."""

    method: str
    place: str
    variances: tuple[float, ...]
    """Mean square of what dropping the direction removes, over the place's variance."""
    predictions: tuple[float, ...] = ()
    """The same in LIB's metric, which is Λ for LIB's own directions; empty where LIB is not compared."""
    rises: tuple[float, ...]
    divergences: tuple[float, ...]


class DirectionCorrelations(Record):
    """Rank correlations (Spearman) of directions' variances and predictions with the effects of dropping
    them.

    Variances are shares of their place's. Correlations are over all directions of all places, and for the
    divergence also within each place, as the mean over places: there no scale of a layer can help or hurt.
    """

    method: str
    directions: int
    rise_by_variance: IntervalEstimate
    rise_by_prediction: IntervalEstimate | None
    divergence_by_variance: IntervalEstimate
    divergence_by_prediction: IntervalEstimate | None
    within_by_variance: IntervalEstimate
    within_by_prediction: IntervalEstimate | None


class MeanJacobianShare(Record):
    """Share of ‖E J‖² in E‖J‖², for J from whitened activations to the next layer's LIB features."""

    source: str
    target: str
    mixes_positions: bool
    """Whether outputs depend on other positions; the mean is then that at the output's own position."""
    share: float


class NeededEdges(Record):
    """Edges of one section that a network needs, in one basis."""

    network: NetworkKind
    method: str
    labels: LabelKind
    """Labels of the data, or drawn from the network's own outputs."""
    source: str
    target: str
    possible: int
    """Edges between the features kept."""
    metric: Metric
    tolerance: float
    baseline: float
    without_edges: float
    """The metric with no edges except those of the constant."""
    robust: int
    """Edges such that no mask found within the rest misses the limit, at level 1."""
    required: int
    """The plain count."""
    interval: tuple[int, int]
    """95 % bootstrap interval of the plain count."""
    area: IntervalEstimate
    """Area under the faithfulness curve; 1 if few edges do it all."""


class Agreement(Record):
    """Agreement of two fits of one method at one place, over the leading directions."""

    method: str
    place: str
    compared: str
    """"halves" of the data, or the name of a network of another seed."""
    directions: int
    """Directions compared."""
    subspace: IntervalEstimate
    """Mean squared canonical correlation."""
    matched: IntervalEstimate
    """Mean correlation over the best one-to-one matching."""


class MethodCost(Record):
    """Cost of fitting a method."""

    network: NetworkKind
    method: str
    processor_seconds: float
    forward_passes: float
    """The same in forward passes over the data that methods are fitted on."""


class YardstickResult(Record):
    """All rows of a comparison."""

    model: str
    request: YardstickRequest
    identity: str
    """SHA-256 over everything that decides the numbers."""
    data: str
    test_data: str
    samples: int
    """Samples that methods were fitted on."""
    test_samples: int
    baseline: float
    """Cross-entropy of the original network on the test samples."""
    replaced_share: dict[str, float]
    """Share of the test tokens that are replaced at each place; others have massive norms."""
    curves: tuple[RankCurve, ...] = ()
    learnt: tuple[LearntDifference, ...] = ()
    directions: tuple[DirectionEffects, ...] = ()
    correlations: tuple[DirectionCorrelations, ...] = ()
    mean_jacobians: tuple[MeanJacobianShare, ...] = ()
    edges: tuple[NeededEdges, ...] = ()
    stability: tuple[Agreement, ...] = ()
    costs: tuple[MethodCost, ...] = ()

    def curve(self, method: str, place: str = "", network: NetworkKind = "trained") -> RankCurve:
        """Return the curve of a method at a place; without a place, at all of them together."""
        key = network, method, place
        return next(curve for curve in self.curves if (curve.network, curve.method, curve.place) == key)

    def effect_per_variance(self, method: str, leading: int = 8) -> float:
        """Divergence per share of the variance, summed over a method's leading directions of all places."""
        effects = [effect for effect in self.directions if effect.method == method]
        divergence = sum(sum(effect.divergences[:leading]) for effect in effects)
        return divergence / sum(sum(effect.variances[:leading]) for effect in effects)
