"""Steering: a feature is changed, and what the model says is put beside what it said.

Results are stored as `steers/NAME.json`, several beside each other, and the report's claims use them.

Over many samples the change is averaged, each sample counting once: at the last position, or over all
positions of a language model's sample. Intervals are those of the mean over samples, 95 %. A label is tested
by what it says about outputs (`analysis/features/claims.py`): the outputs that it names must change more, in
the direction that it says, than with each of 20 random directions of the same length. A label that means
nothing passes one time in 21.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from interbasis.analysis.stored_results import Result, unknown_feature
from interbasis.base.errors import InterbasisError
from interbasis.base.progress import progress_bar
from interbasis.base.records import Record
from interbasis.numerics.intervals import mean_interval

if TYPE_CHECKING:
    from interbasis.analysis.features.claims import Claim
    from interbasis.analysis.features.records import Feature
    from interbasis.analysis.prompts import Prompt
    from interbasis.analysis.traces.steering import Steering
    from interbasis.analysis.workspace import OpenedRun, Workspace
    from interbasis.graph.interaction_graph import InteractionGraph

MAX_NAME = 60
"""Characters of the name of a stored result that say what was changed."""
MAX_OUTPUTS_HELD = 2**24
"""Outputs at all positions of the samples that are run at once."""
MAX_COUNTED_TOKENS = 2**18
"""Tokens in which is counted what follows those that a label names."""


class SteerRequest(Record):
    """Request to change one feature, on one prompt or over many samples."""

    feature: str
    """The feature, as LAYER:NUMBER; TransformerLens names of layers are accepted."""
    by: float = Field(allow_inf_nan=False)
    """How much is added at every position, in standard deviations over the data of the build."""
    prompt: str | None = None
    """Text, for a model with a tokenizer."""
    sample: int | None = Field(None, ge=0)
    """A sample of the data that the run was built on, instead of a prompt."""
    samples: int | None = Field(None, ge=2)
    """Number of samples, the first of the data, over which changes are averaged, instead of a prompt; the
    feature's label is tested on them."""
    directions: int = Field(20, ge=1)
    """Number of random directions of the same length that a label is tested beside."""
    data: str | None = None
    """Data to take samples from; default: what the run was built on."""
    start: int = Field(0, ge=0)
    """The first position that is changed, of a sequence or of the layer's pixels and patches."""
    top: int = Field(10, ge=1)
    """Outputs shown: those whose probability changes most, the most likely ones among them."""
    tokens: int = Field(20, ge=0)
    """Length of the continuations of a language model, in tokens, as far as its context reaches."""


class SteeredOutput(Record):
    """An output at the last position, or averaged over samples, without the change and with it."""

    index: int
    name: str
    before: float
    """Logit."""
    after: float
    probability_before: float
    probability_after: float
    interval: tuple[float, float] | None = None
    """95 % interval of the change of probability, over samples."""


class LabelTest(Record):
    """A claim of a label, and the change that it is about beside random directions."""

    claim: str
    raised: tuple[str, ...]
    """Outputs that should rise when the feature does."""
    lowered: tuple[str, ...]
    """Outputs that should fall."""
    change: float
    """Mean change of their logits, in the direction claimed."""
    interval: tuple[float, float]
    """95 % interval of the mean over samples."""
    random: tuple[float, ...]
    """The same for random directions of the same length."""
    holds: bool
    """Whether the change is larger than with every random direction, and its interval above 0."""


class SteerResult(Result):
    """Effect of a change of one feature on the outputs and on the text that follows."""

    file: ClassVar[str] = "steers"
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
    predicts_next: bool = False
    """Whether outputs are tokens that come next."""
    samples: int | None = None
    """Number of samples over which outputs are averaged; None for one prompt."""
    outputs: tuple[SteeredOutput, ...]
    """Outputs whose probability changes most, the most likely with the change first."""
    tests: tuple[LabelTest, ...] = ()
    """What the label says about outputs, tested."""
    continuation: str | None = None
    """Text that follows without the change."""
    steered: str | None = None
    """Text that follows with the change."""

    def stem(self) -> str:
        words = f"{self.layer} {self.feature} by {self.by:g} {self.prompt}"
        name = re.sub(r"[^a-z0-9.-]+", "-", words.lower())[:MAX_NAME].strip("-.")
        return f"{self.file}/{name}-{sha256(words.encode('utf-8', 'replace')).hexdigest()[:6]}"

    def misfit(self, graph: "InteractionGraph") -> str:
        return unknown_feature(self.layer, [self.feature], graph)


def run(workspace: "Workspace", request: SteerRequest) -> SteerResult:
    """Change a feature, on one prompt or over many samples.

    Args:
        workspace: A run with its network.
        request: Which feature, how far, on which prompt or samples.

    Returns:
        The outputs that change most; continuations with and without the change, or tests of the label. They
        are stored in the run's folder, if it has one.

    Raises:
        InterbasisError: There is no such feature, no tokenizer for a prompt, or no such position.
    """
    from interbasis.analysis.prompts import open_prompt, parse_feature
    from interbasis.analysis.shown_labels import shown_labels
    from interbasis.analysis.traces.steering import Steering, random_shifts

    with workspace.working("steer", alone=False):
        basis, feature = parse_feature(workspace.graph, request.feature)
        unit = basis.deviation(feature)
        network = workspace.network.to(workspace.graph.config.torch_dtype)
        steering = Steering.from_basis(network, basis, feature, request.by * unit, request.start)
        if request.samples is not None and (request.prompt is not None or request.sample is not None):
            raise InterbasisError(
                "expected a prompt, a sample or a number of samples, received several of them"
            )
        sample = 0 if request.samples else request.sample
        prompt = open_prompt(workspace, request.prompt, sample, request.data)
        described = shown_labels(workspace, {basis.name: [feature]}).get((basis.name, feature))
        changed = basis.name, feature, described.label if described else "", unit
        if request.samples is None:
            return workspace.store(steered_result(workspace, request, prompt, steering, changed))
        shifts = random_shifts(basis, feature, steering.change, request.directions)
        averaged = _averaged(workspace, request, steering, prompt, described, shifts)
        result = _result(prompt, request, steering, changed)
        return workspace.store(result.model_copy(update=averaged))


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
    network = steering.network
    outputs = (outputs[:, -1:] for outputs in steering.outputs(prompt.inputs[None]))
    update: dict[str, object] = {"outputs": MeanOutputs.from_outputs(*outputs).rows(prompt, request.top)}
    if network.predicts_next and request.tokens and prompt.names is not None:
        limits = steering.context, workspace.model.context if workspace.model is not None else None
        ends = [limit + 1 - len(prompt.inputs) for limit in limits if limit is not None]
        left = min([request.tokens, *ends])
        texts = (
            "".join(map(prompt.output_name, tokens))
            for tokens in steering.continuations(prompt.inputs, max(0, left))
        )
        update |= zip(("continuation", "steered"), texts, strict=True)
    return _result(prompt, request, steering, changed).model_copy(update=update)


def _result(
    prompt: "Prompt", request: SteerRequest, steering: "Steering", changed: tuple[str, int, str, float]
) -> SteerResult:
    """Return the result of a change, still without outputs."""
    layer, feature, label, unit = changed
    return SteerResult(
        prompt=prompt.text, layer=layer, feature=feature, label=label, by=request.by, unit=unit,
        predicts_next=steering.network.predicts_next, outputs=(),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class MeanOutputs:
    """Outputs of a model without a change and with it, averaged over the positions of each sample."""

    logits: Tensor  # [2, n, outputs]
    shares: Tensor  # [2, n, outputs], probabilities

    @classmethod
    def from_outputs(cls, *logits: Tensor) -> "MeanOutputs":  # before, after: [n, positions, outputs]
        """Average the logits and the probabilities."""
        pair = [part.double() for part in logits]
        shares = torch.stack([part.softmax(2).mean(1) for part in pair])
        return cls(torch.stack([part.mean(1) for part in pair]), shares)

    @classmethod
    def joined(cls, parts: Sequence["MeanOutputs"]) -> "MeanOutputs":
        """All samples together."""
        return cls(
            torch.cat([part.logits for part in parts], 1), torch.cat([part.shares for part in parts], 1)
        )

    def rows(self, prompt: "Prompt", top: int) -> tuple[SteeredOutput, ...]:
        """Outputs whose probability changes most, the likeliest with and without the change among them."""
        changes = self.shares[1] - self.shares[0]
        before, after = self.shares.mean(1)
        ranked = (after - before).abs().topk(min(top, len(after))).indices.tolist()
        chosen = list(dict.fromkeys([int(after.argmax()), int(before.argmax()), *ranked]))[:top]
        logits = self.logits.mean(1)
        return tuple(
            SteeredOutput(
                index=k,
                name=prompt.output_name(k),
                before=logits[0][k].item(),
                after=logits[1][k].item(),
                probability_before=before[k].item(),
                probability_after=after[k].item(),
                interval=mean_interval(changes[:, k]) if len(changes) > 1 else None,
            )
            for k in sorted(chosen, key=lambda k: -after[k].item())
        )


def _averaged(
    workspace: "Workspace",
    request: SteerRequest,
    steering: "Steering",
    prompt: "Prompt",
    described: "Feature | None",
    random_shifts: Tensor,  # [directions, width]
) -> dict[str, object]:
    """Outputs averaged over samples, and tests of the label."""
    from interbasis.analysis.features.claims import label_claims
    from interbasis.data.batches import Batches

    data, text = workspace.data(request.data, "train"), steering.network.predicts_next
    batches = data if isinstance(data, Batches) else Batches(data)
    assert request.samples is not None
    if request.samples > len(batches):
        raise InterbasisError(f"the data have {len(batches)} samples, received samples = {request.samples}")
    length = batches.first().shape[1] if text else 1
    counted = batches.between(0, min(len(batches), max(1, MAX_COUNTED_TOKENS // length))) if text else None
    output = steering.network.output_layer
    width = output.width - output.first_coordinate
    claims = (
        label_claims(described, {prompt.output_name(k): k for k in range(width)}, counted)
        if described
        else ()
    )
    shifts = steering.change[None]
    if claims:
        shifts = torch.cat([shifts.double().cpu(), random_shifts])
    size, means, values = max(1, MAX_OUTPUTS_HELD // (length * width)), [], []
    with progress_bar(workspace.progress) as advance:
        for first, inputs in batches.head(request.samples).chunks(size):
            # a classifier speaks at its last position, a language model at all
            runs = (run if text else run[:, -1:] for run in steering.shifted_outputs(inputs, shifts))
            before, changes = next(runs), list[Tensor]()
            for after in runs:
                if not changes:
                    means.append(MeanOutputs.from_outputs(before, after))
                moved = (after - before).double()
                changes.append(
                    torch.stack([claim.value(moved).mean(1) for claim in claims] or [moved[:, 0, 0]])
                )
            values.append(torch.stack(changes))  # [1 + directions, claims, n]
            advance("steering", first + len(inputs), request.samples)
    return {
        "prompt": f"{request.samples} samples",
        "samples": request.samples,
        "outputs": MeanOutputs.joined(means).rows(prompt, request.top),
        "tests": _tests(claims, torch.cat(values, 2), request.by, prompt) if claims else (),
    }


def _tests(
    claims: Sequence["Claim"], values: Tensor, by: float, prompt: "Prompt"
) -> tuple[LabelTest, ...]:  # [1 + directions, claims, samples]
    """Each claim with what was measured; lowering a feature should do the opposite of raising it."""
    tests = []
    for claim, measured in zip(claims, (values if by >= 0 else -values).transpose(0, 1), strict=True):
        change, random = measured[0].mean().item(), measured[1:].mean(1)
        interval = mean_interval(measured[0])
        tests.append(
            LabelTest(
                claim=claim.text,
                raised=tuple(map(prompt.output_name, claim.raised)),
                lowered=tuple(map(prompt.output_name, claim.lowered)),
                change=change,
                interval=interval,
                random=tuple(random.tolist()),
                holds=change > random.max().item() and interval[0] > 0,
            )
        )
    return tuple(tests)
