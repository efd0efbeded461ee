"""Records of the analysis of features; layers by name, features by index."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from interbasis.base.records import Record, require

ExampleKind = Literal["tokens", "images", "rows"]
Box = tuple[float, float, float, float]
"""(left, top, right, bottom) as shares of a picture."""
MAX_LABEL_TERMS = 3
"""Fourier terms in the text of a label."""
MIN_LABEL_SHARE = 0.05
"""Share of a Fourier term after the first from which on it stands in the text of a label."""


class Histogram(Record):
    """Counts between neighbouring edges; one edge more than counts."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @model_validator(mode="after")
    def _counts_lie_between_edges(self) -> Self:
        require(len(self.edges) == len(self.counts) + 1, "a histogram needs one edge more than counts")
        return self


class Push(Record):
    """Change of one output by a feature."""

    name: str
    value: float


class Effects(Record):
    """The outputs that one feature pushes most, for one standard deviation of it where that is known."""

    up: tuple[Push, ...]
    down: tuple[Push, ...]
    share: float
    """Share of its squared effect on all outputs that goes to the first of ``up`` and of ``down``."""
    contrast: float = 0.0
    """The larger of the two, in units of the largest among as many Gaussian numbers with the same mean
    square, √(2 ln outputs) of them: about 1 for a random direction."""


class MeanPush(Push):
    """Mean change of one output by a feature, with the estimate's standard error."""

    error: float


class MeanEffects(Record):
    """The outputs that a feature moves most at its own position, averaged over the data."""

    up: tuple[MeanPush, ...]
    down: tuple[MeanPush, ...]
    share: float
    """Share of its squared effect on all outputs that goes to the first of ``up`` and of ``down``, less
    squares of standard errors. 0 where either is within two standard errors of 0."""
    contrast: float = 0.0
    """As of `Effects`; 0 where the larger of the two is not clear of its standard error."""


class FourierTerm(Record):
    """One trigonometric term of a feature of modular addition."""

    text: str
    share: float
    """Share of the feature's power."""
    frequencies: tuple[int, int]
    """(k_x, k_y), 0 where the variable does not occur."""
    phases: tuple[float, ...]
    """Radians: of the sum form's cosine; of x and y in a product, and in cos(kx)+cos(ky)."""
    amplitudes: tuple[float, ...]
    """One, or two for cos(kx)+cos(ky)."""


class FourierLabel(Record):
    """Trigonometric terms of a feature, the largest share first."""

    form: Literal["sum", "product"]
    terms: tuple[FourierTerm, ...]

    @property
    def share(self) -> float:
        """Share of the leading term."""
        return self.terms[0].share

    @property
    def text(self) -> str:
        """Text like "70% cos(7x+7y) + 30% cos(31x+31y)"."""
        more = [term for term in self.terms[1:MAX_LABEL_TERMS] if term.share >= MIN_LABEL_SHARE]
        return " + ".join(f"{100 * term.share:.0f}% {term.text}" for term in [self.terms[0], *more])


class ClassStatistics(Record):
    """Dependence of a feature on the classes of the samples; all tuples have one entry per class."""

    names: tuple[str, ...]
    means: tuple[float, ...]
    auroc: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    """AUROC of the class against the others; 0.1 separates as well as 0.9."""
    explained: float
    """Share of the feature's variance that the class explains, adjusted for the number of classes."""

    @model_validator(mode="after")
    def _one_entry_per_class(self) -> Self:
        lengths = {len(self.names), len(self.means), len(self.auroc)}
        require(len(lengths) == 1 and lengths != {0}, "names, means and auroc need an entry for every class")
        return self


class PositionStatistics(Record):
    """Dependence of a feature on the position in the sequence."""

    means: Annotated[tuple[float, ...], Field(min_length=1)]
    share: float
    """Share of the feature's variance that the position explains, adjusted for the number of positions."""


TokenKind = Literal["token", "previous", "next", "context"]
EvidenceKind = Literal[
    "position", "variance", TokenKind, "identity", "class", "fourier", "direct effect", "mean effect"
]


class Evidence(Record):
    """Explanation of a part of a feature: something it responds to, or does to the outputs."""

    kind: EvidenceKind
    text: str
    """For people: "position 1", "“␣Lily / Tom”", "after “the”", "promotes “␣Lily” over “␣he”"."""
    share: float
    """Share of the feature's variance that is explained by what the text names, adjusted for the number of
    groups; of what it does, share of its squared effect on all outputs."""
    low: bool = False
    """Whether the feature is low for the tokens that the text names first, not high."""
    place: TokenKind | None = None
    """Where the tokens are that the text is about."""
    tokens: tuple[int, ...] = ()
    """The tokens that the text names, as numbers."""
    opposite: tuple[int, ...] = ()
    """The token at the other end of a feature that depends on the identity of tokens."""


class Feature(Record):
    """One feature; fields that do not apply to its network or data are None."""

    index: int
    label: str
    """The line that says most; empty where nothing is known."""
    histogram: Histogram
    fourier: FourierLabel | None = None
    classes: ClassStatistics | None = None
    positions: PositionStatistics | None = None
    effects: Effects | None = None
    """Effects along the path that no core bends."""
    mean_effects: MeanEffects | None = None
    """Effects through all blocks above, averaged over the data."""
    evidence: tuple[Evidence, ...] = ()
    """Evidence by its share, the largest first; the label is the first where it explains enough."""


class MonosemanticCount(Record):
    """Number of a layer's first features that are mostly one Fourier term."""

    paper: int
    """Among the first ``top`` features, the constant included: the paper's way."""
    without_constant: int
    """Among the first ``top`` features after the constant."""
    top: int


class LayerFeatures(Record):
    """The features of one layer that were looked at."""

    name: str
    features: tuple[Feature, ...]
    monosemantic: MonosemanticCount | None = None

    def by_index(self) -> dict[int, Feature]:
        return {feature.index: feature for feature in self.features}


class Idle(Record):
    """Features of one layer that have incoming edges and no outgoing ones."""

    layer: str
    considered: int
    """Number of features that were considered, the constant left out."""
    features: tuple[int, ...]
    incoming: float
    """Threshold of Ê on the way in."""
    outgoing: float
    """Threshold of Ê on the way out."""

    @property
    def count(self) -> int:
        return len(self.features)


class ExampleBase(Record):
    """A value of a feature, and the sample that it occurs in."""

    value: float
    sample: int


class TokenExample(ExampleBase):
    """A place in a text."""

    position: int
    """In the sample's inputs."""
    tokens: tuple[str, ...]
    activations: tuple[float, ...]
    """The feature's value at each of the tokens."""
    active: int
    """Index of the token that the example is about."""

    @model_validator(mode="after")
    def _every_token_has_an_activation(self) -> Self:
        require(len(self.tokens) == len(self.activations), "an example needs an activation for every token")
        require(0 <= self.active < len(self.tokens), "an example is about none of its tokens")
        return self


class ImageExample(ExampleBase):
    """An image, as a PNG data URI."""

    image: str
    """A thumbnail, dimmed outside the field where there is one."""
    label: str
    field: Box | None = None
    """Receptive field; None is all of the picture."""


class RowExample(ExampleBase):
    """The first inputs of a sample."""

    inputs: tuple[float, ...]
    label: str
    names: tuple[str, ...] = ()
    """Names of these inputs, where they are known."""


Example = TokenExample | ImageExample | RowExample


class Band(Record):
    """Examples of similar activation: one of the ends, or a quantile band in between."""

    name: str
    examples: tuple[Example, ...]


class FeatureExamples(Record):
    """The examples of one feature, from the most positive band to the most negative."""

    index: int
    bands: tuple[Band, ...]


class Examples(Record):
    """Dataset examples of the features of a layer."""

    kind: ExampleKind
    features: tuple[FeatureExamples, ...]
