"""Records of the difference between two models."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from torch import Tensor

from interbasis.analysis.features.records import Example
from interbasis.analysis.stored_results import DataUsed
from interbasis.base.records import Measured, Record

OutputMetric = Literal["lib", "inverse covariance"]
"""W, the metric of a section's outputs: CᵀC of a run of the first model, or their inverse covariance."""
Along = Literal["first", "second"]
"""Model whose activations are the input of both sections."""


class ComparedModel(Record):
    """One of the two models."""

    name: str
    fingerprint: str
    """SHA-256 of its weights."""


class Share(Record):
    """A mean over data as a share of the first model's own."""

    value: Measured
    error: Measured
    """Standard error over groups of neighbouring samples; NaN where there is a single group."""


class ChangedDirection(Record):
    """A leading direction of a change."""

    share: Measured
    """Share of the change of the section's outputs, or of its Jacobian, that lies in this direction."""
    features: dict[int, float] = Field(default_factory=dict)
    """Features of the run that the direction overlaps most with, with the share of the direction in each."""
    examples: tuple[Example, ...] = ()
    """Tokens where it is most active: by the difference of the outputs, or by the input."""


class HeadChange(Record):
    """Change of the Jacobian through one head, as shares of the Jacobian of the first model's section."""

    head: int
    value: Measured
    """Through values alone, with queries and keys as they are."""
    key: Measured
    query: Measured
    total: Measured
    """Through all three together; they may cancel or add up."""


class SectionChange(Record):
    """One section of both models on the same input."""

    name: str
    changed: bool
    """Whether the two sections differ at all; the shares of one that does not are 0 exactly."""
    outputs: Share
    """E[DᵀWD] over the variance of what the first model's section computes beside streams it carries."""
    jacobian: Share
    """E[tr JᵀWJ], J = ∂(F − G)/∂f, over that of the same part of the first model's section."""
    output_directions: tuple[ChangedDirection, ...] = ()
    input_directions: tuple[ChangedDirection, ...] = ()
    """Of E[JᵀWJ]: inputs that are treated differently, through all paths."""
    reading_directions: tuple[ChangedDirection, ...] = ()
    """Of the same with the weights that read the input changed alone: inputs that are read differently. A
    changed query matrix acts on the Jacobian through keys and values, too; its row space is found here."""
    heads: tuple[HeadChange, ...] = ()
    """Heads of attention, those that changed most first."""


class DepthChange(Record):
    """A node layer of both models, each on its own input, as shares of the first model's variance there."""

    total: Measured
    """E[δᵀWδ] of δ = f_A − f_B."""
    arising: Measured
    """The same of F(f_A) − G(f_A), what the section before the layer adds to the difference."""
    passed_on: Measured
    """The same of G(f_A) − G(f_B), what the section makes of differences before it."""


class Difference(Record):
    """What two models compute differently; sections by the name of their source layer, layers by name."""

    first: ComparedModel
    second: ComparedModel
    data: DataUsed
    along: Along
    metric: OutputMetric
    sections: dict[str, SectionChange]
    layers: dict[str, DepthChange]

    @property
    def leading(self) -> str | None:
        """Section whose difference adds most to the layer after it; None where nothing differs."""
        arising = [layer.arising for layer in list(self.layers.values())[1:]]
        largest = max(range(len(arising)), key=arising.__getitem__)
        return list(self.sections)[largest] if arising[largest] > 0 else None


class DifferenceSeries(Record):
    """Differences of several pairs of models in order, as checkpoints of one training."""

    differences: tuple[Difference, ...]

    @property
    def steps(self) -> list[str]:
        """Names of the second models."""
        return [difference.second.name for difference in self.differences]


@dataclass(frozen=True, eq=False)
class MeasuredDifference:
    """The record of a difference, and its leading directions."""

    record: Difference
    tensors: dict[str, Tensor]
    """By section: SECTION.outputs [k, d_out], SECTION.inputs and SECTION.reading [k, d_in], with rows of unit
    length, and SECTION.output_values, SECTION.input_values, SECTION.reading_values, the eigenvalues of the
    Grams; of the head of attention that changed most, SECTION.head.query, SECTION.head.key and
    SECTION.head.value, input directions by path."""
