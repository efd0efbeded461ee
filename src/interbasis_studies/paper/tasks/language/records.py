"""The result of a language model in one basis; layers by name, sections by the name of their source layer."""

from typing import ClassVar, Literal

from interbasis.analysis.stored_results import Result
from interbasis.analysis.summary import LayerSummary
from interbasis.base.records import Dtype, Record
from interbasis_studies.paper.records import JobResult, NamedSection

Kind = Literal["attention", "MLP", "norm in", "norm out", "other"]
"""Kinds of sections; norm in computes the variance, norm out divides by it."""
CENTRAL_KINDS: tuple[Kind, ...] = ("attention", "MLP")
"""The sections that the paper's claims are about."""


class TokensUsed(Record):
    """Numbers of tokens that a result was computed from."""

    basis: int
    edges: int
    test: int
    test_windows: int
    described: int
    """Tokens that features were described from."""


class CombinedAblation(Record):
    """The cross-entropy with the accepted masks of several sections in force at once."""

    sections: str
    """Description of the sections."""
    number: int
    edges: int
    """Edges that are kept."""
    value: float
    baseline: float


class CombinedAblations(Result):
    """All groups of sections; stored in the run, as it takes a while."""

    file: ClassVar[str] = "combined"
    command: ClassVar[str] = "reproduce"

    data: str
    """Fingerprint of the test windows."""
    counts: dict[str, int]
    """Edges kept by the masks of the sections."""
    groups: tuple[CombinedAblation, ...]


class MeasuredLayer(Record):
    """One node layer."""

    summary: LayerSummary
    variance: float | None
    """Sum over all directions kept."""
    positional: tuple[float, ...]
    """Shares of the first features' variance that position explains."""


class NormEdges(NamedSection):
    """Whether a layer norm's edges are 1-to-1, and what the variance hears and tells."""

    own: float
    """Median over the first outputs of the largest edge's share of Σ_j Ê_ij², the variance's left out."""
    own_of_all: float
    """The same over all outputs."""
    first: int | None = None
    """The feature that drives the variance most; 1 is the first."""
    share: float | None = None
    """Its part."""
    reaches: float | None = None
    """Share of the outputs that the variance reaches."""


class Reach(NamedSection):
    """Shares of an attention's outputs to which inputs have needed edges."""

    first: tuple[float, ...]
    """Shares of the first two inputs."""
    ranks: tuple[int, ...]
    """Ranks of these among all inputs."""
    median: float
    """Share of a median input."""
    inputs: int


class ProfileShape(Record):
    """Shape of a profile along the sequence: R² of three fits."""

    step: float
    """At position 0."""
    line: float
    """Without position 0."""
    sinusoid: float
    """Without position 0, of the best number of cycles."""
    cycles: float


class Profile(Record):
    """One feature along the sequence."""

    feature: int
    share: float
    """Share of its variance that position explains."""
    shape: ProfileShape
    means: tuple[float, ...]


class Profiles(Record):
    """The first features of a layer along the sequence."""

    layer: str
    pooled: float
    """Mean share: that of the summed variance where every feature is scaled to variance 1."""
    features: tuple[Profile, ...]


class ShownExamples(Record):
    """Texts at which a feature is most positive and most negative."""

    layer: str
    feature: int
    label: str
    most_positive: str
    most_negative: str


class LanguageResult(JobResult):
    """A language model in one basis."""

    dtype: Dtype | None
    tokens: TokensUsed
    middle: int
    """The block in the middle."""
    kinds: dict[str, Kind]
    combined: tuple[CombinedAblation, ...]
    node_layers: dict[str, MeasuredLayer]
    norms: dict[str, NormEdges]
    reach: dict[str, Reach]
    profiles: Profiles | None
    """At the start of the middle block; None where that is not a node layer."""
    examples: tuple[ShownExamples, ...]
