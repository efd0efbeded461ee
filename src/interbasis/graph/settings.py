"""Settings of a build: frozen, complete, and refusing unknown names."""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator

from interbasis.base.records import Basis, Dtype, Method, NonEmptyNames, Record

if TYPE_CHECKING:
    import torch

    from interbasis.numerics.integration import Rule
    from interbasis.numerics.linalg import Floor
    from interbasis.numerics.random_signs import Sources


def _several(value: object) -> object:
    """A single number as a tuple."""
    return (value,) if isinstance(value, int) else value


def _increasing(counts: tuple[int, ...]) -> tuple[int, ...]:
    if not counts or counts[0] < 2 or any(a >= b for a, b in pairwise(counts)):
        raise ValueError("expected totals after each round: increasing numbers, the first at least 2")
    return counts


Counts = Annotated[tuple[int, ...], BeforeValidator(_several), AfterValidator(_increasing)]
"""Totals after each round, increasing."""

RankedBy = Literal["lambda", "variance"]


@dataclass(frozen=True)
class BasisKind:
    """A kind of basis as settings, tables and pages speak of it; `interbasis.lib.bases` fits them."""

    name: Basis
    title: str
    """The name in running text."""
    description: str
    """One line: what its features are."""
    ranked_by: RankedBy
    """Measure that ranks the features in every layer but the last, where it is the variance."""
    rotated: bool = True
    """Whether features mix the coordinates of a layer."""


LIB = BasisKind(
    "lib", "LIB", "local interaction basis: eigenvectors of the Jacobian Gram to the next layer", "lambda"
)
GIB = BasisKind(
    "gib", "GIB", "global interaction basis: eigenvectors of the Jacobian Gram to the last layer", "lambda"
)
JIB = BasisKind(
    "jib",
    "JIB",
    "joint interaction basis: LIB turned towards sparse Jacobians on slices of the data",
    "lambda",
)
PCA = BasisKind("pca", "PCA", "principal directions of the activations", "variance")
NEURON = BasisKind("neuron", "neuron", "the coordinates of the layer as they are", "variance", rotated=False)
RANDOM = BasisKind("random", "random", "control: a random rotation of the whitened activations", "lambda")

BASIS_KINDS: dict[Basis, BasisKind] = {kind.name: kind for kind in (LIB, GIB, JIB, PCA, NEURON, RANDOM)}
"""All of them by name, in the order of `base.records.Basis`."""


ROUNDINGS = 256
"""Roundings of a number, one after the other, that the noise floor allows for. Noise was measured at a fourth
of that and below, features of trained models at 40 times and above (docs/method.md, "Noise floor")."""


DEFAULT_NORM_LIMIT = 3.0
"""For language models: massive tokens have 5 to 200 times the median norm of their layer, most others less
than 3 (docs/method.md, "Massive activations")."""


MAX_THREADS = 1024
"""The C library ends a process that asks for more threads than the system gives it."""


JACOBIAN_GROUPS = 8
"""Independent estimates of a Gram of Jacobians where samples are drawn."""
STATISTICS_GROUPS = 2
"""Independent estimates where samples are drawn for the statistics: few, since each holds large sums."""


class BuildConfig(Record):
    """The settings of `interbasis.build`, all of them with their defaults."""

    model_config = ConfigDict(allow_inf_nan=False)

    basis: Basis = "lib"
    """Kind of basis."""
    rotate_last: bool | None = None
    """Rotate the last node layer (PCA, unscaled) or leave it as it is; default: by model family."""
    threshold: float = Field(1e-15, ge=0)
    """Absolute noise floor: directions whose variance, or whose Λ, is at most this are dropped."""
    relative_threshold: float | None = Field(None, ge=0, lt=1)
    """Noise floor as a fraction of the largest value; default: width · 2.2e-16, and what rounding in the
    network's dtype amounts to in that direction; 0 is the paper's rule."""
    jacobian_sources: int | None = Field(None, ge=1)
    """Stochastic sources over output positions where no closed form is known; default: exact."""
    jacobian_queries: int | None = Field(None, ge=2)
    """Query positions sampled per sequence in attention's Jacobians; default: all. The estimate is unbiased
    and comes with errors of Λ, in the layers before the attention, too."""
    statistics_samples: int | None = Field(None, ge=2)
    """Samples, drawn at random, over which means, Grams and Jacobians are averaged; default: all. Comes with
    errors of Λ, as sampled queries do."""
    jacobian_samples: int | None = Field(None, ge=2)
    """Samples, drawn at random, over which attention's Jacobians are averaged; default: all. Comes with
    errors of Λ, as sampled queries do."""
    isolate: bool = True
    """Keep a layer norm's variance as a feature of its own, out of the decompositions, as in the paper."""
    skip_positions: int = Field(0, ge=0)
    """Number of positions at the start of every sequence that are left out of all sums over the data."""
    norm_limit: float | None = Field(None, ge=0)
    """Leave out of all sums over the data, layer by layer, tokens whose norm exceeds this many times the
    median of their layer; 0 leaves none out. Default: 3 for language models, else 0."""
    isolate_largest: bool = False
    """Keep the direction of largest variance of every layer as a feature of its own, as a layer norm's
    variance is; norm_limit then defaults to 0."""
    edge_method: Method | None = "gradient"
    """How integrated gradients are computed; none builds no edges."""
    edge_points: int = Field(16, ge=1)
    """Points of the integration rule, for the methods that use one."""
    edge_group: Annotated[int, Field(ge=1)] | Literal["positions"] | None = None
    """Tokens per group of stochastic sources for edges, or positions; default: exact."""
    edge_sources: int = Field(2, ge=1)
    """Sets of random signs per group."""
    edge_positions: int | None = Field(None, ge=1)
    """Output positions sampled per sequence, with an edge group; default: all."""
    edge_samples: Counts | None = None
    """Samples, drawn at random, over which edges are averaged, with errors; several numbers are totals after
    each round. Once all were drawn, they are drawn again where signs or positions are sampled. Default:
    all, once."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Random seed."""
    dtype: Dtype | None = None
    """Data type that the network computes in; default: float32 for Hugging Face models, else float64. Sums
    over the data and decompositions are always float64."""

    @field_validator("edge_method", mode="before")
    @classmethod
    def _none_is_no_edges(cls, method: object) -> object:
        return None if method == "none" else method

    @field_validator("norm_limit")
    @classmethod
    def _above_the_median(cls, limit: float | None) -> float | None:
        if limit is not None and 0 < limit < 1:
            raise ValueError(
                "a limit below the median leaves out most tokens; use at least 1, or 0 for no limit"
            )
        return limit

    @property
    def kind(self) -> BasisKind:
        """Description of the chosen basis."""
        return BASIS_KINDS[self.basis]

    @property
    def sampled(self) -> bool:
        """Whether anything is sampled."""
        return any(getattr(self, name) is not None for name in SAMPLED)

    @property
    def eigenvalue_degrees(self) -> int:
        """Degrees of freedom of every error of Λ: those of the estimates that it is the spread of."""
        if self.statistics_samples is not None:
            return STATISTICS_GROUPS - 1
        return min(JACOBIAN_GROUPS, self.jacobian_samples or 2) - 1

    @property
    def variance_floor(self) -> "Floor":
        """Noise floor of variances: activations after ROUNDINGS roundings, a random walk, squared."""
        from interbasis.numerics.linalg import Floor

        return Floor(self.threshold, self.relative_threshold, ROUNDINGS * self._unit_roundoff**2)

    @property
    def jacobian_floor(self) -> "Floor":
        """Noise floor of Λ: sums of products, ROUNDINGS roundings in the same direction."""
        from interbasis.numerics.linalg import Floor

        return Floor(self.threshold, self.relative_threshold, ROUNDINGS * self._unit_roundoff)

    @property
    def _unit_roundoff(self) -> float:
        import torch

        return torch.finfo(self.torch_dtype).eps / 2

    @property
    def torch_dtype(self) -> "torch.dtype":
        import torch

        return getattr(torch, self.dtype or "float64")

    @property
    def edge_rule(self) -> "Rule | None":
        from interbasis.numerics.integration import rule

        return rule(self.edge_method, self.edge_points) if self.edge_method else None

    @property
    def edge_sampling(self) -> "Sources | None":
        """Stochastic sources of the edges; None where sums are exact."""
        from interbasis.numerics.random_signs import Sources

        if self.edge_group is None:
            return None
        return Sources(self.edge_group, self.edge_sources, self.seed, self.edge_positions)


SAMPLED = (
    "statistics_samples", "jacobian_sources", "jacobian_queries", "jacobian_samples", "edge_group",
    "edge_positions", "edge_samples",
)  # fmt: skip
"""Settings that say what is sampled, unless a target decides it; None is everything."""
SAMPLING = (*SAMPLED, "edge_sources")
"""All that a target decides."""


def parse_fraction(value: object) -> object:
    """A number, or a text such as 5% or 0.05."""
    if not isinstance(value, str):
        return value
    number = value.strip()
    try:
        return float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"expected a fraction such as 5% or 0.05, received {value!r}") from None


SECONDS = {"min": 60.0, "s": 1.0, "h": 3600.0, "d": 86400.0}
"""By unit of time."""


def parse_seconds(value: object) -> object:
    """A number of seconds, or a text such as 90s, 10min or 2h."""
    if not isinstance(value, str):
        return value
    number = value.strip()
    unit = next((unit for unit in SECONDS if number.endswith(unit)), "")
    try:
        return SECONDS.get(unit, 1.0) * float(number.removesuffix(unit))
    except ValueError:
        raise ValueError(f"expected a time such as 90s, 10min or 2h, received {value!r}") from None


class BuildTarget(Record):
    """Precision of a build, or the time that it may take."""

    error: Annotated[float, BeforeValidator(parse_fraction), Field(gt=0, lt=1)] | None = None
    """Relative error to reach, such as 5%, in every layer and section: a short trial chooses what is sampled.
    Default: exact where that takes under a minute or the model is no language model, else 5%."""
    time: Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)] | None = None
    """Time to take, such as 10min: the smallest error within it."""
    exact: bool = False
    """Sample nothing."""


class BuildRequest(BuildConfig, BuildTarget):
    """The settings of `interbasis.build` with the names of what they are for; unknown keys are refused."""

    model: str
    """modadd[:PATH], cifar10-conv[:PATH], mlp:PATH, hf:FOLDER-OR-HUB-ID or python:MODULE:FUNCTION."""
    model_name: str | None = None
    """Name of the model on pages and in reports; default: the class of a traced module, else MODEL."""
    data: str | None = None
    """Data of the basis; default: what the model was trained on."""
    jacobian_data: str | None = None
    """Data over which Jacobians are averaged; default: --data."""
    edge_data: str | None = None
    """Data over which edges are averaged; default: --data."""
    layers: NonEmptyNames | None = None
    """Comma-separated neighbouring node layers, or their names in TransformerLens; default: all."""
    dictionary: tuple[str, ...] = ()
    """LAYER=PATH: a sparse dictionary of a node layer, attn_out.N or mlp_out.N, or LAYER=lib for LIB's basis;
    give several. The graph is then between their features."""
    only_dictionaries: bool = True
    """Pass through node layers without a dictionary; --no-only-dictionaries gives those between the first
    and the last dictionary LIB's basis."""
    threads: int | None = Field(None, ge=1, le=MAX_THREADS)
    """Threads to compute with; the same number gives the same bits. Default: PyTorch's choice."""

    @property
    def settings(self) -> BuildConfig:
        """The fields of `BuildConfig` alone."""
        return BuildConfig(**{name: getattr(self, name) for name in BuildConfig.model_fields})

    @property
    def target(self) -> BuildTarget:
        """The fields of `BuildTarget` alone."""
        return BuildTarget(error=self.error, time=self.time, exact=self.exact)
