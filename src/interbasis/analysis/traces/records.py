"""The graph of one computation, as records; nodes are named by `LAYER:FEATURE@POSITION`.

Positions are those of the inputs, also behind a section of which only the last position comes out. A layer
with a grid (pixels, patches) has positions of its own, row by row. Signed
numbers are in the units of the target: logits, or the activation of a feature.
"""

from math import prod
from typing import Literal, Self

from pydantic import Field, model_validator

from interbasis.analysis.features.records import Box
from interbasis.base.records import Measured, Method, Record, require

TargetKind = Literal["logit", "difference", "feature"]
TARGET = "target"
"""The name of the target, where an edge ends there."""


def node_name(layer: str, feature: int, position: int) -> str:
    """The name of a feature at a position: `mlp_in.3:17@5`."""
    return f"{layer}:{feature}@{position}"


def error_name(layer: str, position: int) -> str:
    """The name of the dropped directions of a layer at a position: `mlp_in.3:error@5`."""
    return f"{layer}:error@{position}"


def place_name(position: int, grid: tuple[int, ...] | None) -> str:
    """The text of a position that is no token: `3, 4` is a row and a column; empty where there is but one."""
    if not grid:
        return "" if grid == () else str(position)
    places = []
    for size in reversed(grid):
        position, place = divmod(position, size)
        places.append(str(place))
    return ", ".join(reversed(places))


class TraceToken(Record):
    """One position of the input; of many pixels, one with influence."""

    position: int
    token: int | None
    """Its number in the vocabulary; None where inputs are not tokens."""
    text: str
    influence: float
    """Influence of its features at the first layer; with the errors of all layers, tokens add up to 1."""


class TraceOutput(Record):
    """An output of the model at the target's position, before anything was changed."""

    index: int
    name: str
    logit: float
    probability: float


class TraceTarget(Record):
    """The output that the trace explains: a logit, the difference of two, or a feature."""

    name: str
    """For people: " Lily", " Lily − Tom", "mlp_in.3:17"."""
    kind: TargetKind
    position: int
    value: float
    """Its value for this input; a logit is counted from the mean of all logits."""
    constant: float
    """The part of ``value`` that comes straight from the constant of the layer before."""
    output: int | None = None
    """The token or class whose logit it is."""
    minus: int | None = None
    """The token or class whose logit is taken away; None is the mean of all."""
    layer: str | None = None
    feature: int | None = None


class TraceNode(Record):
    """A feature at a position."""

    name: str
    layer: str
    feature: int
    position: int
    activation: float
    """f̂; 0 is the mean over the data of the build."""
    influence: float
    """Share of the target's influence that passes through it; those of a layer add up to at most 1."""
    effect: float
    """Activation × gradient of the target along all paths: exact for small changes. What setting the feature
    to its mean does is predicted otherwise, and measured: see `TraceChecks`."""
    constant: float
    """The edge into it from the constant of the layer before, over all positions."""
    label: str = ""
    """Label of the feature, from the run's features."""
    field: Box | None = None
    """The part of the picture that it depends on, where inputs are pictures and it is not all of it."""


class ErrorNode(Record):
    """The directions of a layer that the basis dropped, at one position."""

    name: str
    layer: str
    position: int
    whole: bool = False
    """Whether it is the whole token, less the mean: one with massive activations, which the sums behind the
    basis left out."""
    influence: float
    effect: float


class AttentionPaths(Record):
    """An edge through attention in its parts, which add up to it."""

    skip: float
    """Past the attention, along the residual stream."""
    value: float
    """Through the values that are moved from the source's position."""
    key: float
    """Through the pattern, by the key at the source's position."""
    query: float
    """Through the pattern, by the query at the target's position."""


class TraceEdge(Record):
    """A signed attribution between two nodes: f̂_source ∫dα ∂f̂_target/∂z_source along z = α f."""

    source: str
    target: str
    weight: float
    share: float
    """|weight| among all that comes into the target from features and errors."""
    paths: AttentionPaths | None = None


class LayerTrace(Record):
    """Share of a layer that the trace holds."""

    name: str
    coverage: float
    """Share of the influence on the next layer's nodes that its selected features and its errors have; the
    influence is divided among these."""
    error_share: float
    """Share of the influence on the next layer's nodes that comes from dropped directions."""
    selected: int
    """Features at positions whose influence was followed; ``nodes`` holds those that pruning left."""
    grid: tuple[int, ...] | None = None
    """The shape of its positions where they are its own; () is one position, None those of the inputs."""


class TraceScores(Record):
    """Shares of the influence that flow through features, and that end at dropped directions."""

    replacement: float
    """Influence of tokens / (of tokens + of errors), along whole paths from the target."""
    completeness: float
    """Share of what comes into each node that is not from errors, averaged over all nodes by their influence;
    tokens and errors, into which nothing comes, count with 1."""
    error_share: float
    """Influence that ends at error nodes."""
    whole_share: float
    """The part of it that ends at whole tokens, which the sums behind the bases left out."""
    coverage: float
    """The smallest coverage of any layer."""


class NodeCheck(Record):
    """Change of the target when a feature is set to a value at one position and the sections after it run."""

    node: str
    set_to: float
    predicted: float
    measured: float


class EdgeCheck(Record):
    """Change of a node when its source is set to its mean and the section between them is run."""

    source: str
    target: str
    predicted: float
    measured: float


class CheckAgreement(Record):
    """Predicted against measured changes."""

    count: int
    rank_correlation: Measured
    """Spearman's."""
    sign_agreement: Measured
    """Share of changes with the sign that was predicted."""


class TraceChecks(Record):
    """Predictions of the strongest nodes and edges, each beside what was measured."""

    nodes: tuple[NodeCheck, ...]
    """The nodes with the largest |effect|, set to their mean; predicted by slopes averaged on the way."""
    spread: tuple[NodeCheck, ...]
    """As many nodes at equal distances in the ranking of all by |effect|, likewise."""
    other_values: tuple[NodeCheck, ...]
    """The nodes with the largest |effect|, set to 0.9 times and to twice their activation; predicted by the
    gradient."""
    edges: tuple[EdgeCheck, ...]
    """The edges with most influence."""
    node_agreement: CheckAgreement
    gradient_agreement: CheckAgreement
    """Agreement for ``nodes``, had they been predicted by the gradient."""
    spread_agreement: CheckAgreement
    other_agreement: CheckAgreement
    edge_agreement: CheckAgreement


class NodeGroup(Record):
    """Nodes that belong together: a module of the run, or a group made on the page."""

    name: str
    nodes: tuple[str, ...]


class TraceSettings(Record):
    """Settings of tracing and pruning."""

    method: Method = "exact"
    """Method of the integral along the straight line; with exact, the edges into a node add up to it."""
    quadrature: int = Field(16, ge=1)
    """Points of the integration rule where there is no closed form."""
    max_nodes: int = Field(64, ge=1)
    """Maximum number of features (at positions) to follow in each layer, the most influential ones."""
    node_threshold: float = Field(0.8, gt=0, le=1)
    """Keep the most influential nodes that together hold this share of all influence."""
    edge_threshold: float = Field(0.98, gt=0, le=1)
    """Keep the most influential edges that together hold this share of all influence."""
    effect_points: int = Field(6, ge=0)
    """Points between the mean and the activations of a position at which slopes are averaged to predict what
    setting a feature to its mean does; 0 uses the gradient at the activations, which is fastest."""
    checks: int = Field(20, ge=0)
    """Number of the strongest nodes, of nodes of all sizes, and of edges, checked by interventions."""


class Trace(Record):
    """The graph of one computation."""

    summary: str
    """Sentence on the target and on whether predictions held. The first line wherever it is shown."""
    prompt: str
    picture: str | None = None
    """The input as a PNG data URI, where it is a picture."""
    settings: TraceSettings
    tokens: tuple[TraceToken, ...]
    outputs: tuple[TraceOutput, ...]
    """The largest outputs at the target's position."""
    target: TraceTarget
    layers: tuple[LayerTrace, ...]
    """In the network's order, as far as the layer before the target."""
    nodes: tuple[TraceNode, ...]
    """Nodes that pruning left, in the order of layers, positions and features."""
    errors: tuple[ErrorNode, ...]
    edges: tuple[TraceEdge, ...]
    """Between nodes, error nodes and the target; the source lies in the layer before."""
    scores: TraceScores
    checks: TraceChecks | None = None
    groups: tuple[NodeGroup, ...] = ()

    @model_validator(mode="after")
    def _edges_join_nodes_at_tokens(self) -> Self:
        positions = {token.position for token in self.tokens}
        grids = {layer.name: layer.grid for layer in self.layers if layer.grid is not None}
        nodes: tuple[TraceNode | ErrorNode, ...] = (*self.nodes, *self.errors)
        for node in nodes:
            grid = grids.get(node.layer)
            placed = node.position in positions if grid is None else 0 <= node.position < prod(grid)
            require(placed, "a node stands at no token")
        names = {TARGET, *(node.name for node in nodes)}
        require(all({edge.source, edge.target} <= names for edge in self.edges), "an edge joins no nodes")
        return self

    @property
    def trusted(self) -> bool:
        """Whether predictions held where they were checked."""
        return self.checks is not None and predictions_hold(self.checks)


MIN_SIGN_AGREEMENT = 0.75
"""Share of the strongest nodes; below it the first line of a trace says that its predictions fail."""
MIN_RANK_CORRELATION = 0.5
"""Over nodes of all sizes; likewise."""


def predictions_hold(checks: TraceChecks) -> bool:
    """Whether signs and ranks of the measured changes are those predicted."""
    return (
        checks.node_agreement.sign_agreement >= MIN_SIGN_AGREEMENT
        and checks.spread_agreement.rank_correlation >= MIN_RANK_CORRELATION
    )
