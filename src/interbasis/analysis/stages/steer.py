"""Steering: a feature is changed, and what the model says is put beside what it said. Nothing is stored."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from interbasis.analysis.stored_results import Result
from interbasis.base.records import Record

if TYPE_CHECKING:
    from interbasis.analysis.prompts import Prompt
    from interbasis.analysis.traces.steering import Steering
    from interbasis.analysis.workspace import OpenedRun, Workspace


class SteerRequest(Record):
    """Request to change one feature on one prompt."""

    feature: str
    """The feature, as LAYER:NUMBER; TransformerLens names of layers are accepted."""
    by: float = Field(allow_inf_nan=False)
    """How much is added at every position, in standard deviations over the data of the build."""
    prompt: str | None = None
    """Text, for a model with a tokenizer."""
    sample: int | None = Field(None, ge=0)
    """A sample of the data that the run was built on, instead of a prompt."""
    data: str | None = None
    """Data to take the sample from; default: what the run was built on."""
    start: int = Field(0, ge=0)
    """The first position that is changed, of a sequence or of the layer's pixels and patches."""
    top: int = Field(10, ge=1)
    """Outputs shown: those that change most."""
    tokens: int = Field(20, ge=0)
    """Length of the continuations of a language model, in tokens, as far as its context reaches."""


class SteeredOutput(Record):
    """An output at the last position, without the change and with it."""

    index: int
    name: str
    before: float
    """Logit."""
    after: float
    probability_before: float
    probability_after: float


class SteerResult(Result):
    """Effect of a change of one feature on the next token and on the text that follows."""

    file: ClassVar[str] = "steer"
    command: ClassVar[str] = "steer"

    prompt: str
    layer: str
    feature: int
    label: str
    by: float
    """Change of the feature, in standard deviations."""
    unit: float
    """One standard deviation of the feature; 1 where it is not known."""
    unit_name: str = "standard deviations"
    """Words for the unit; features of a dictionary are changed by RMS activations where they are active."""
    outputs: tuple[SteeredOutput, ...]
    """Outputs whose logit changes most, counted from the mean change; the largest rise first."""
    continuation: str | None = None
    """Text that follows without the change."""
    steered: str | None = None
    """Text that follows with the change."""


def run(workspace: "Workspace", request: SteerRequest) -> SteerResult:
    """Change a feature on one prompt.

    Args:
        workspace: A run with its network.
        request: Which feature, how far, on which prompt.

    Returns:
        The outputs that change most, and continuations with and without the change.

    Raises:
        InterbasisError: There is no such feature, no tokenizer for a prompt, or no such position.
    """
    from interbasis.analysis.prompts import open_prompt, parse_feature
    from interbasis.analysis.stages.features import FeaturesResult
    from interbasis.analysis.traces.steering import Steering

    basis, feature = parse_feature(workspace.graph, request.feature)
    layer = basis.name
    prompt = open_prompt(workspace, request.prompt, request.sample, request.data)
    unit = basis.deviation(feature)
    network = workspace.network.to(workspace.graph.config.torch_dtype)
    steering = Steering.from_basis(network, basis, feature, request.by * unit, request.start)
    described = workspace.stored(FeaturesResult)
    labelled = described.layers[layer].by_index() if described and layer in described.layers else {}
    label = labelled[feature].label if feature in labelled else ""
    return steered_result(workspace, request, prompt, steering, (layer, feature, label, unit))


def steered_result(
    workspace: "OpenedRun",
    request: SteerRequest,
    prompt: "Prompt",
    steering: "Steering",
    changed: tuple[str, int, str, float],
) -> SteerResult:
    """Outputs and continuations of a prompt without a change and with it.

    ``changed`` are the layer, the number, the label and the unit of the feature that is changed.
    """
    network, (layer, feature, label, unit) = steering.network, changed
    before, after = (outputs[0, -1].double() for outputs in steering.outputs(prompt.inputs[None]))
    change = (after - before) - (after - before).mean()
    most = change.abs().topk(min(request.top, len(change))).indices
    chosen = most[change[most].argsort(descending=True)].tolist()
    shares = before.softmax(0), after.softmax(0)
    plain = steered = None
    if network.predicts_next and request.tokens and prompt.names is not None:
        left = request.tokens
        if workspace.model is not None and workspace.model.context is not None:
            left = min(left, workspace.model.context + 1 - len(prompt.inputs))
        continued = steering.continuations(prompt.inputs, max(0, left))
        plain, steered = ("".join(map(prompt.output_name, tokens)) for tokens in continued)
    return SteerResult(
        prompt=prompt.text,
        layer=layer,
        feature=feature,
        label=label,
        by=request.by,
        unit=unit,
        outputs=tuple(
            SteeredOutput(
                index=k,
                name=prompt.output_name(k),
                before=before[k].item(),
                after=after[k].item(),
                probability_before=shares[0][k].item(),
                probability_after=shares[1][k].item(),
            )
            for k in chosen
        ),
        continuation=plain,
        steered=steered,
    )
