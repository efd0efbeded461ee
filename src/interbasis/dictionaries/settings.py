"""Settings of the training of dictionaries, and the record of it; frozen, and refusing unknown names."""

from typing import Literal

from pydantic import Field

from interbasis.base.records import NonEmptyNames, Record

MetricKind = Literal["raw", "lib", "root", "both", "gib", "fisher"]
"""Metrics of the error of a reconstruction, as `metrics.py` defines them."""


class TrainSettings(Record):
    """Settings of the training of a dictionary."""

    features: int = Field(512, ge=1)
    """Number of features."""
    active: int = Field(8, ge=1)
    """Features that are active at a token; with batchtopk, on average."""
    kind: Literal["topk", "batchtopk"] = "topk"
    """The largest pre-activations of every token, or of every batch."""
    steps: int = Field(3000, ge=1)
    """Steps of Adam."""
    batch: int = Field(2048, ge=1)
    """Tokens per step."""
    rate: float = Field(2e-3, gt=0)
    """Learning rate of Adam."""
    seed: int = Field(0, ge=0)
    """Random seed of the first features and of the tokens drawn."""


class DictionarySettings(TrainSettings):
    """Everything that decides dictionaries, except model and data."""

    layers: NonEmptyNames
    """Node layers, separated by commas; a dictionary is of the stream that the layer's section reads."""
    metric: MetricKind = "raw"
    """Metric of the error: raw (the usual squares), lib, root, both (raw + lib), gib or fisher."""
    metric_samples: int = Field(200, ge=1)
    """Samples that the metric is averaged over, the first of the data."""
    jacobian_penalty: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Weight of the mean |∂z′/∂z| of active features, for two neighbouring layers around an MLP: edges
    become sparse, too; default: none."""
    norm_limit: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Leave out tokens whose norm exceeds this many times the median of their layer; 0 leaves none out;
    default: 3 for language models, else 0."""


class LayerTraining(Record):
    """The end of one training."""

    loss: float
    """Mean squared error of the last step in the metric, as a share of the variance in it."""
    dead: int
    """Features that were not active for a while at the end."""
    tokens: int
    """Tokens that were drawn from."""


class TrainingRecord(Record):
    """Data and settings of the dictionaries in a folder, and the end of their training."""

    model: str
    model_fingerprint: str
    data: str
    data_fingerprint: str
    settings: DictionarySettings
    layers: dict[str, LayerTraining]
