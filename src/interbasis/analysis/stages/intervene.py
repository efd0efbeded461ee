"""Interventions: a feature is set to a value over the data, and accuracy and loss are compared.

Results are stored as `interventions/NAME.json`, several beside each other, and the report's claims use them.
"""

import re
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from interbasis.analysis.stored_results import DataUsed, Result, unknown_feature
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import progress_bar
from interbasis.base.records import Record
from interbasis.numerics.intervals import mean_interval

if TYPE_CHECKING:
    from interbasis.analysis.workspace import Workspace
    from interbasis.graph.interaction_graph import InteractionGraph


class InterveneRequest(Record):
    """Request to set one feature over labelled data."""

    feature: str
    """The feature, as LAYER:NUMBER; TransformerLens names of layers are accepted."""
    value: float | None = Field(None, allow_inf_nan=False)
    """Value at every position, in standard deviations from the feature's mean over the data of the build;
    default: the feature's mean given the true label, or the group of the label."""
    groups: tuple[int, ...] | None = None
    """A group for every class, whose mean takes the place of the class's."""
    data: str | None = None
    """Data to measure on; default: the test data of the run."""


class InterventionResult(Result):
    """Accuracy and loss of the original model and of the one whose feature is set."""

    file: ClassVar[str] = "interventions"
    command: ClassVar[str] = "intervene"

    layer: str
    feature: int
    label: str
    value: float | None
    """Value in standard deviations from the mean; None for the mean given the label."""
    groups: tuple[int, ...] | None
    data: DataUsed
    accuracy: tuple[float, float]
    """Before and after."""
    loss: tuple[float, float]
    """Cross-entropy before and after, all labels counting alike."""
    loss_interval: tuple[float, float] | None
    """95 % interval of the change of the loss, each sample counting once; None for a single sample."""

    @property
    def target(self) -> str:
        """Value that the feature is set to, in words."""
        if self.value is not None:
            return f"{self.value:+g} standard deviations" if self.value else "its mean"
        return f"its mean given the {'label' if self.groups is None else 'group of the label'}"

    def stem(self) -> str:
        words = f"{self.layer} {self.feature} to {self.target} {self.groups or ''} {self.data.fingerprint}"
        name = re.sub(r"[^a-z0-9.-]+", "-", f"{self.layer} {self.feature} to {self.target}".lower())
        return f"{self.file}/{name.strip('-.')}-{sha256(words.encode()).hexdigest()[:6]}"

    def misfit(self, graph: "InteractionGraph") -> str:
        return unknown_feature(self.layer, [self.feature], graph)


def run(workspace: "Workspace", request: InterveneRequest) -> InterventionResult:
    """Set a feature over labelled data and measure accuracy and loss.

    Args:
        workspace: A run with its network and data.
        request: Which feature, to what, on which data.

    Returns:
        The result, which is stored in the run's folder, if it has one.

    Raises:
        InterbasisError: There is no such feature, or the data have no labels.
    """
    from interbasis.analysis.features.interventions import intervene
    from interbasis.analysis.prompts import parse_feature
    from interbasis.analysis.shown_labels import shown_labels
    from interbasis.data.batches import Batches

    if request.value is not None and request.groups is not None:
        raise InterbasisError("groups are for means given the label; leave out groups or the value")
    with workspace.working("intervene", alone=False), progress_bar(workspace.progress) as advance:
        basis, feature = parse_feature(workspace.graph, request.feature)
        data = workspace.data(request.data, "test")
        network = workspace.network.to(workspace.graph.config.torch_dtype)
        if not Batches(data, predicts_next=network.predicts_next).labelled:
            raise InterbasisError("accuracy and loss require labels; give data with labels, or use steer")
        value = request.value
        if value is not None:  # features of a basis are centred, neurons are not
            mean = float(basis.mean[feature]) if basis.identity and basis.mean is not None else 0.0
            value = mean + value * basis.deviation(feature)
        changed = intervene(network, basis, data, feature, value, groups=request.groups, progress=advance)
        described = shown_labels(workspace, {basis.name: [feature]}).get((basis.name, feature))
        changes = torch.tensor(changed.loss_changes, dtype=torch.float64)
        result = InterventionResult(
            layer=basis.name,
            feature=feature,
            label=described.label if described else "",
            value=request.value,
            groups=request.groups,
            data=DataUsed.from_data(data),
            accuracy=(changed.accuracy[0], changed.accuracy[1]),
            loss=(changed.loss[0], changed.loss[1]),
            loss_interval=mean_interval(changes) if len(changes) > 1 else None,
        )
        return workspace.store(result)
