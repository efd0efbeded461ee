"""One computation of a run's model: stored as `traces/NAME.json`, several beside each other."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from interbasis.analysis.features.records import Feature
from interbasis.analysis.stages.modules import ModulesResult
from interbasis.analysis.stored_results import Result, unknown_feature, unknown_layer
from interbasis.analysis.traces.records import NodeGroup, Trace, TraceNode, TraceSettings
from interbasis.base.errors import InterbasisError

if TYPE_CHECKING:
    from interbasis.analysis.workspace import Workspace
    from interbasis.graph.interaction_graph import InteractionGraph
    from interbasis.network.network import Network

MAX_NAME = 48
"""Characters of a trace's name that are made from its prompt."""


class TraceRequest(TraceSettings):
    """Request for a trace: a prompt or a sample of the data, and the output or feature to explain."""

    prompt: str | None = None
    """Text, for a model with a tokenizer."""
    sample: int | None = Field(None, ge=0)
    """A sample of the data that the run was built on, instead of a prompt."""
    data: str | None = None
    """Data to take the sample from; default: what the run was built on."""
    output: str | None = None
    """The token or class to explain, as text or number; default: the largest output."""
    minus: str | None = None
    """Another one, whose logit is subtracted; default: the mean of all logits."""
    feature: str | None = None
    """A feature to explain instead, as LAYER:NUMBER; TransformerLens names of layers are accepted."""
    position: int = -1
    """Position of what is explained; -1 is the last."""
    name: str | None = None
    """Name of the trace in the run; default: made from the prompt."""


class TraceResult(Result):
    """A trace, with the run's labels and modules."""

    file: ClassVar[str] = "traces"
    command: ClassVar[str] = "trace"

    name: str
    trace: Trace

    def stem(self) -> str:
        return f"{self.file}/{self.name}"

    def misfit(self, graph: "InteractionGraph") -> str:
        trace = self.trace
        problems = (
            unknown_layer([layer.name for layer in trace.layers], graph.layer_names),
            *(unknown_feature(node.layer, [node.feature], graph) for node in trace.nodes),
            unknown_layer([node.layer for node in trace.errors], graph.layer_names),
        )
        return next(filter(None, problems), "")


def run(workspace: "Workspace", request: TraceRequest) -> TraceResult:
    """Trace one computation, and name its nodes by what the run knows about features and modules.

    Args:
        workspace: A run with its network.
        request: What to trace.

    Returns:
        The trace, which is stored in the run's folder, if it has one.

    Raises:
        InterbasisError: There is no tokenizer for a prompt, or no such output, feature or sample.
    """
    from interbasis.analysis.prompts import named_output, open_prompt, parse_feature
    from interbasis.analysis.shown_labels import shown_labels
    from interbasis.analysis.traces.targets import TargetRequest
    from interbasis.analysis.traces.trace import trace

    with workspace.working("trace", alone=False):
        prompt = open_prompt(workspace, request.prompt, request.sample, request.data)
        if request.feature is not None:
            basis, number = parse_feature(workspace.graph, request.feature)
            target = TargetRequest(layer=basis.name, feature=number, position=request.position)
        else:
            output, minus = (named_output(prompt, word) for word in (request.output, request.minus))
            target = TargetRequest(output=output, minus=minus, position=request.position)
        settings = TraceSettings.model_validate(request.model_dump(include=set(TraceSettings.model_fields)))
        traced = trace(
            workspace.network, workspace.graph, prompt.inputs, target, settings=settings, names=prompt.names
        )
        wanted: dict[str, list[int]] = {}
        for node in traced.nodes:
            wanted.setdefault(node.layer, []).append(node.feature)
        nodes, groups = _described(
            traced.nodes, shown_labels(workspace, wanted), workspace.stored(ModulesResult)
        )
        if prompt.picture is not None:
            nodes = _with_fields(nodes, workspace.network)
        described = {"prompt": prompt.text, "picture": prompt.picture, "nodes": nodes, "groups": groups}
        traced = traced.model_copy(update=described)
        text = prompt.text if request.sample is None else f"sample {request.sample}"
        words = filter(None, [text, request.feature, request.output, request.minus])
        name = request.name or name_from_words(" ".join(words))
        return workspace.store(TraceResult(name=name, trace=traced))


def _described(
    nodes: Sequence[TraceNode], described: Mapping[tuple[str, int], Feature], modules: ModulesResult | None
) -> tuple[tuple[TraceNode, ...], tuple[NodeGroup, ...]]:
    """Return the nodes with their labels, and the run's modules that occur among them."""
    labelled, members = [], dict[int, list[str]]()
    for node in nodes:
        known = described.get((node.layer, node.feature))
        labelled.append(node.model_copy(update={"label": known.label}) if known else node)
        module = None if modules is None else modules.find_module(node.layer, node.feature)
        if module is not None:
            members.setdefault(module, []).append(node.name)
    groups = tuple(NodeGroup(name=f"module {m}", nodes=tuple(members[m])) for m in sorted(members))
    return tuple(labelled), groups


def _with_fields(nodes: Sequence[TraceNode], network: "Network") -> tuple[TraceNode, ...]:
    """Return the nodes with the part of the picture that each depends on."""
    from interbasis.analysis.features.contexts import field_box
    from interbasis.network.receptive_field import receptive_fields

    fields = {name: receptive_fields(network, k) for k, name in enumerate(network.layers)}

    def with_field(node: TraceNode) -> TraceNode:
        seen = fields[node.layer]
        if seen is None or seen.shape[1] != 2:
            return node
        box = field_box(seen[node.position])
        return node if box == (0, 0, 1, 1) else node.model_copy(update={"field": box})

    return tuple(map(with_field, nodes))


def name_from_words(words: str) -> str:
    """Letters and digits of a prompt, to name a trace by.

    Raises:
        InterbasisError: There are none.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-")
    if not name:
        raise InterbasisError("the prompt has no letters or digits to name the trace by; give it a name")
    return name[-MAX_NAME:].lower().strip("-")
