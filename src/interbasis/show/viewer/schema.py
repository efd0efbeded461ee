"""Records that the page is given, and all that its JavaScript reads.

The page is given one `PageData` as JSON. Stored records are used where the page shows all of their fields;
the others take the fields that it shows from the attributes of stored ones (`PageRecord`). A field that is
renamed here is renamed in `static/`, and SCHEMA is raised: the page refuses data of another version. Numbers
by the thousand travel as base64 of little-endian arrays, made from tensors (`Floats`, `Indices`). Results
that were not computed are null.
"""

from base64 import b64encode
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BeforeValidator, ConfigDict, Field
from torch import Tensor

from interbasis.analysis.features import records
from interbasis.analysis.traces.records import AttentionPaths, NodeGroup, TraceToken
from interbasis.base.records import Basis, Measured, Metric, Record
from interbasis.show.viewer.notes import Notes

SCHEMA = 7
"""Version of these records; `static/data.js` names the same."""


def _base64(kind: str, values: object) -> object:
    """A tensor as base64 of an array of this kind; text as it is."""
    if not isinstance(values, Tensor):
        return values
    return b64encode(values.detach().cpu().numpy().astype(kind).tobytes()).decode("ascii")


Floats = Annotated[str, BeforeValidator(partial(_base64, "<f4"))]
"""Base64 of little-endian float32."""
Indices = Annotated[str, BeforeValidator(partial(_base64, "<u4"))]
"""Base64 of little-endian uint32."""


class PageRecord(Record):
    """A record that can be made from any object with the attributes that it shows."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)


def _at(*path: str) -> Any:
    """A field that is taken from an attribute of an attribute."""
    return Field(validation_alias=AliasPath(*path))


class PageTerm(PageRecord):
    """One Fourier term of a feature."""

    text: str
    share: float
    """Share of the feature's variance."""


class PagePush(PageRecord):
    """The change of one output by a feature."""

    name: str
    value: float
    error: float | None = None
    """Standard error, where it is an average over the data."""


class PageEffects(Record):
    """The outputs that a feature moves most, from the most raised to the most lowered."""

    rows: tuple[PagePush, ...]
    share: float
    """Share of its squared effect on all outputs that goes to the first and the last of them."""


class PageEvidence(PageRecord):
    """Explanation of a part of a feature."""

    kind: records.EvidenceKind
    text: str
    share: float
    low: bool
    """Whether the feature is low for the tokens that the text names first."""


class PageFeature(Record):
    """Labels and statistics of a feature, made by `interbasis features`."""

    index: int
    label: str
    histogram: records.Histogram
    fourier: tuple[PageTerm, ...] | None
    classes: records.ClassStatistics | None
    positions: records.PositionStatistics | None
    effects: PageEffects | None
    """Along the path that no core bends."""
    mean_effects: PageEffects | None
    """Through all blocks above, averaged over the data."""
    evidence: tuple[PageEvidence, ...]
    """The largest share first."""


class PageLayer(Record):
    """One node layer."""

    name: str
    hook: str | None
    """Name of the place in TransformerLens; None where it has none."""
    width: int
    """Coordinates before any were dropped, the constant among them."""
    size: int
    """Features, the constant among them."""
    constant: bool
    """Whether feature 0 is the constant."""
    isolated: int
    """Features after the constant that hold one coordinate each."""
    outputs: bool
    """Whether its features are the network's outputs themselves."""
    output_names: tuple[str, ...] | None
    """Names of the outputs, one for each feature; None for other layers, and where they are not known."""
    folded: bool
    """Whether the page leaves it out at first: part of a layer norm, almost 1 to 1 with the next layer as far
    as edges tell."""
    dropped_as_noise: int
    dropped_as_unused: int
    ranked_by: Literal["lambda", "variance"]
    eigenvalues: Floats | None
    eigenvalue_errors: Floats | None
    modules: tuple[int, ...] | None
    """The module of every feature; −1 for a feature in none."""
    features: tuple[PageFeature, ...]
    examples: tuple[records.FeatureExamples, ...]


class PageTrial(PageRecord):
    """One mask that the ablation tried."""

    kept: int
    value: float
    complete: bool
    """Whether the value is a measurement; if not, it is a bound that the metric cannot be better than."""


class PageRobustCount(PageRecord):
    """Edges such that no mask found within the rest misses the limit."""

    count: int


class PageEdgesRequired(PageRecord):
    """Edges required of one section."""

    robust: PageRobustCount | None
    count: int
    """The plain count."""
    possible: int
    """d_in · d_out of the untruncated widths."""
    epsilon: float
    """The smallest edge Ê required."""
    value: float
    trials: tuple[PageTrial, ...]


class PageCurve(PageRecord):
    """The metric as edges of one section are ablated."""

    counts: tuple[int, ...]
    values: tuple[float, ...]
    area: Measured


class PageSection(PageRecord):
    """The strongest edges between two layers, in descending order."""

    source: str
    target: str
    nonzero: int
    """Edges above 0, those of the constant left out."""
    held: int
    """Number of them that the page holds."""
    held_share: float
    """Share of Σ Ê² in those."""
    sum_of_squares: float
    """Σ Ê² over all edges."""
    sources: Indices
    targets: Indices
    values: Floats
    errors: Floats | None
    constant: Floats | None
    """Edges of the constant, one for each target."""
    into_all: Floats
    """(Σ_i Ê_ij²)^½ over all targets i, one for each source j."""
    edges_required: PageEdgesRequired | None
    """None where this section was not ablated."""
    curve: PageCurve | None


class PageCurves(PageRecord):
    """Conditions that the curves were measured under."""

    metric: Metric = _at("curves", "metric")
    baseline: float = _at("curves", "baseline")
    data: str = _at("data", "fingerprint")
    """Fingerprint of the data."""


class PageAblation(PageRecord):
    """Conditions that the edges required were measured under."""

    metric: Metric
    baseline: float
    data: str = _at("data", "fingerprint")
    tolerance: float


class PageAbout(Record):
    """Settings, data and versions of a run."""

    settings: dict[str, str | int | float | bool | None]
    samples: dict[str, int]
    seconds: dict[str, float]
    versions: dict[str, str]
    model_fingerprint: str
    precision: str
    """Errors reached and asked for, a sentence; empty where nothing was sampled."""


class PageTraceTarget(PageRecord):
    """The output or feature that a trace explains."""

    name: str
    position: int
    value: float
    output: int | None
    """The token or class; None for a feature."""
    probability: float = 0.0
    """Probability that the model gives it; 0 where it is not among its largest outputs."""


class PageTraceNode(PageRecord):
    """A feature at a position, or what a layer's basis dropped there."""

    name: str
    layer: str
    feature: int | None = None
    """None for dropped directions, and for a whole token."""
    whole: bool = False
    """Whether it is a token as a whole, which the sums behind the basis left out."""
    position: int
    field: records.Box | None = None
    """The part of the picture that it depends on."""
    activation: float = 0.0
    influence: float
    effect: float
    predicted: float | None = None
    """Change of the target when it is set to its mean; None where that was not checked."""
    measured: float | None = None


class PageTraceEdge(PageRecord):
    """A signed attribution."""

    source: str
    target: str
    weight: float
    paths: AttentionPaths | None


class PageTraceScores(PageRecord):
    """Shares of the influence that flow through features."""

    replacement: float
    completeness: float
    error_share: float


class PageTraceChecks(PageRecord):
    """Predictions compared with measurements; None where that is undefined."""

    strongest: int = _at("node_agreement", "count")
    """Nodes with the largest |effect|, set to their mean."""
    signs: Measured = _at("node_agreement", "sign_agreement")
    """Share of them that change the target in the predicted direction."""
    signs_by_gradient: Measured = _at("gradient_agreement", "sign_agreement")
    spread: int = _at("spread_agreement", "count")
    """Nodes of all sizes, set to their mean."""
    ranks: Measured = _at("spread_agreement", "rank_correlation")
    """Rank correlation over these."""
    edges: int = _at("edge_agreement", "count")
    edge_signs: Measured = _at("edge_agreement", "sign_agreement")


class PageTrace(Record):
    """One traced computation."""

    name: str
    """In the run."""
    summary: str
    trusted: bool
    """Whether predictions held where they were checked; true where nothing was."""
    prompt: str
    picture: str | None
    """The input as a PNG data URI, where it is a picture."""
    tokens: tuple[TraceToken, ...]
    target: PageTraceTarget
    layers: tuple[str, ...]
    grids: tuple[tuple[int, ...] | None, ...]
    """The shape of each layer's positions where they are its own."""
    nodes: tuple[PageTraceNode, ...]
    edges: tuple[PageTraceEdge, ...]
    scores: PageTraceScores
    checks: PageTraceChecks | None
    groups: tuple[NodeGroup, ...]
    settings: dict[str, str | int | float]


class PageTable(PageRecord):
    """A table as text; the first column names the rows."""

    title: str
    columns: tuple[str, ...] = _at("names")
    rows: tuple[tuple[str, ...], ...]
    note: str


class PageDifference(Record):
    """The difference between the run's model and another one."""

    name: str
    """In the run."""
    second: str
    """Name of the other model."""
    findings: tuple[str, ...]
    """What was found, a sentence each."""
    tables: tuple[PageTable, ...]


class PageRun(Record):
    """Everything the page shows of a run."""

    name: str
    """Name of its folder; empty for a graph in memory."""
    digest: str
    """SHA-256 of the graph's tensors; empty for a graph in memory."""
    family: str
    model: str
    basis: Basis
    layers: tuple[PageLayer, ...]
    sections: tuple[PageSection, ...]
    about: PageAbout
    ablation: PageAblation | None
    curves: PageCurves | None
    labelled: bool
    """Whether features were looked at."""
    examples: records.ExampleKind | None
    notes: Notes | None
    notes_version: str
    """The version of the notes, which the page names when it saves others in their place."""
    traces: tuple[PageTrace, ...]
    traces_left_out: int
    """Older ones that the run has, too."""
    too_few_data: str
    """A sentence on layers with no more tokens than coordinates; empty where all have more."""
    differences: tuple[PageDifference, ...]
    outdated: tuple[str, ...]
    """Commands whose results were measured on an older graph of the run, and are left out."""
    unreadable: tuple[str, ...]
    """Results that could not be read, a sentence each."""


class PageMatch(Record):
    """The features of a layer in two runs, each beside the one that is most like it.

    Two features of one model overlap by the absolute value of their correlation over the data of the build,
    those of models with different weights by the cosine of their directions (`analysis/feature_matching.py`).
    """

    layer: str
    first: Indices
    """For every feature of the first run, the one of the second that overlaps most."""
    first_overlap: Floats
    second: Indices
    second_overlap: Floats


class PageData(Record):
    """All that a page is given."""

    format: Literal["interbasis-page"] = "interbasis-page"
    schema_version: int = SCHEMA
    token: str | None
    """Token that the server accepts notes with; null for a page without a server."""
    runs: tuple[PageRun, ...]
    matches: tuple[PageMatch, ...] = ()
    """By layer, for two runs."""
