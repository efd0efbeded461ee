"""One computation in the features of dictionaries: which of them made an output what it is.

The effect of a feature j active at position t of a layer is measured: its vector z_j W_d,j is taken out of
the layer at that position alone, the network runs on, and the target loses so much. All active features are
measured, several at a time, or of very many those with the largest gradient times activation. Features that
are active at most tokens say little by being active: they are set to their mean, which counts as a part of
the constant. Nodes with the largest effects are kept in every layer, and the edges between them are
attributions of one feature's pre-activation to the other (`chain.py`), by path through attention.

Two predictions are compared with interventions. Gradient times activation, z_j W_d,j · ∂target/∂f_t, which
adds up to the gradient times the layer over features, errors, carried streams and the constant, is what the
target would lose if the network were linear. Edges predict what a feature of the next layer loses when the
feature before it is taken out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from interbasis.analysis.prompts import named_output, open_prompt
from interbasis.analysis.stages.trace import name_from_words
from interbasis.analysis.stored_results import Result
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Measured, Record
from interbasis.dictionaries.chain import Chain
from interbasis.dictionaries.layers import REMAINDERS, ActiveFeatures, DictionaryLayer
from interbasis.lib.counted_tokens import ALL_TOKENS, CountedTokens
from interbasis.network.network import Network
from interbasis.numerics.integration import rule

if TYPE_CHECKING:
    from interbasis.analysis.dictionaries.workspace import DictionaryWorkspace

USUALLY_ACTIVE = 0.5
"""Share of the tokens; features that are active at more of them are traced from their mean."""
NODE_SHARE = 0.8
"""Share of Σ |effect| of a layer's features that the nodes kept hold."""
MAX_NODES = 64
"""Nodes kept in a layer."""
MAX_MEASURED = 512
"""Features of a layer, at positions, whose effect is measured."""
MAX_EDGES_INTO = 8
"""Edges kept into a node."""
CHECKED_EDGES = 40
"""Strongest edges between two layers that are checked by interventions."""
MAX_ELEMENTS = 2**24
"""Numbers in the activations of sequences that run together."""


class DictionaryNode(Record):
    """An active feature at a position."""

    feature: int
    position: int
    value: float
    """Its activation."""
    effect: float
    """Loss of the target when it is set to 0, or to its mean, as measured."""
    gradient: float
    """The same to first order, by gradient times activation."""


class DictionaryEdge(Record):
    """Attribution of a node's pre-activation to a node of the layer before; nodes by their place in lists."""

    source: int
    target: int
    value: float
    paths: dict[str, float] | None = None
    """By skip, value, key and query where attention lies between."""
    measured: float | None = None
    """Loss of the target's pre-activation without the source; None where it was not measured."""


class TracedDictionary(Record):
    """A layer of a trace."""

    place: str
    active: int
    """Active features at all positions."""
    nodes: tuple[DictionaryNode, ...]
    gradients: dict[str, float]
    """Gradient times activation of all features, of errors, of carried streams and of the constant."""
    edges: tuple[DictionaryEdge, ...]
    """From the layer before."""


class DictionaryTrace(Result):
    """The trace of one prompt."""

    file: ClassVar[str] = "traces"
    command: ClassVar[str] = "trace"

    name: str = ""
    """Its name in the run."""
    prompt: str = ""
    words: dict[int, str] = Field(default_factory=dict)
    """Texts of its tokens by number; empty where the model has no tokenizer."""
    tokens: tuple[int, ...]
    target: int
    """The output whose logit, over the mean of all, is explained."""
    position: int
    value: float
    layers: tuple[TracedDictionary, ...]
    sign_agreement: Measured
    """Share of the checked edges whose value has the sign of what the intervention measured."""
    correlation: Measured
    """Spearman's correlation of these edges' values and measurements."""
    gradient_sign_agreement: Measured
    """Share of the nodes whose gradient has the sign of their effect."""
    gradient_correlation: Measured
    """Spearman's correlation of the nodes' gradients and effects."""

    def stem(self) -> str:
        return f"{self.file}/{self.name}"


@dataclass(frozen=True, eq=False)
class _State:
    """A dictionary's layer at the prompt."""

    layer: DictionaryLayer
    f: Tensor  # [T, width] of the node layer of its vectors
    active: ActiveFeatures  # [T, k]
    vectors: Tensor  # [T, k + 3, width]
    slope: Tensor  # ∂target/∂f [T, width]

    @property
    def gradients(self) -> Tensor:  # [T, k + 3]
        return (self.vectors * self.slope[:, None]).sum(-1)


def trace_prompt(
    workspace: "DictionaryWorkspace",
    text: str | None,
    sample: int | None,
    data: str | None,
    output: str | None,
    name: str | None,
) -> DictionaryTrace:
    """Trace a prompt or a sample of the data in a graph's dictionaries, and store the trace."""
    prompt = open_prompt(workspace, text, sample, data)
    baselines = [
        torch.where(statistics.frequency > USUALLY_ACTIVE, statistics.mean, 0.0)
        for statistics in workspace.graph.statistics
    ]
    trace = trace_dictionaries(
        workspace.computing, workspace.layers, prompt.inputs, named_output(prompt, output), baselines,
        workspace.counted,
    )  # fmt: skip
    text = prompt.text if sample is None else f"sample {sample}"
    named = {
        "name": name or name_from_words(f"{text} {output or ''}"),
        "prompt": text,
        "words": workspace.words([*trace.tokens, trace.target]),
    }
    trace = trace.model_copy(update=named)
    workspace.store(trace)
    return trace


def trace_dictionaries(
    network: Network,
    layers: Sequence[DictionaryLayer],
    tokens: Tensor,
    target: int | None = None,
    baselines: Sequence[Tensor] | None = None,
    counted: CountedTokens = ALL_TOKENS,
) -> DictionaryTrace:
    """Trace a prompt.

    Args:
        network: A language model.
        layers: Dictionaries at their places, in the network's order.
        tokens: Token ids [T].
        target: The output to explain, at the last position; default: the most likely one.
        baselines: Activation of every feature that counts as its absence, [features] per layer; default: 0.
        counted: Tokens whose features are nodes. Others, of massive norm, are left to the error as a whole:
            dictionaries were not trained on them.

    Raises:
        InterbasisError: The network is no language model, or the prompt is empty.
    """
    if not network.predicts_next or tokens.ndim != 1 or not len(tokens):
        raise InterbasisError(
            "a trace of dictionaries explains the next token of a language model; expected token ids [T]"
        )
    inputs = tokens[None].to(network.device)
    activations = [f.detach() for f in network.activations(inputs)]
    logits = network.output_from(activations[-1], inputs)[0, -1]
    target = int(logits.argmax()) if target is None else target
    baselines = [torch.zeros(layer.features) for layer in layers] if baselines is None else baselines
    states = [
        _state(network, layer, baseline, activations, inputs, target, counted=counted)
        for layer, baseline in zip(layers, baselines, strict=True)
    ]
    chosen = [_strongest(network, state, inputs, target) for state in states]
    incoming: list[tuple[DictionaryEdge, ...]] = [()]
    for (before, (sources, _)), (after, (targets, _)) in pairwise(zip(states, chosen, strict=True)):
        incoming.append(_edges(network, activations, before, sources, after, targets))
    traced = [
        _traced(state, places, effects, edges)
        for state, (places, effects), edges in zip(states, chosen, incoming, strict=True)
    ]
    nodes = [(node.gradient, node.effect) for layer in traced for node in layer.nodes]
    checked = [(e.value, e.measured) for layer in traced for e in layer.edges if e.measured is not None]
    (signs, ranks), (gradient_signs, gradient_ranks) = map(agreement, (checked, nodes))
    return DictionaryTrace(
        tokens=tuple(tokens.tolist()), target=target, position=len(tokens) - 1,
        value=(logits[target] - logits.mean()).item(), layers=tuple(traced),
        sign_agreement=signs, correlation=ranks,
        gradient_sign_agreement=gradient_signs, gradient_correlation=gradient_ranks,
    )  # fmt: skip


def _traced(
    state: _State, places: Tensor, effects: Tensor, edges: tuple[DictionaryEdge, ...]
) -> TracedDictionary:
    active, sums = state.active, state.gradients.sum(0)
    k = active.indices.shape[1]
    return TracedDictionary(
        place=state.layer.name, active=int(active.real.sum()), edges=edges,
        nodes=tuple(
            DictionaryNode(
                feature=int(active.indices[t, m]), position=t, value=active.values[t, m].item(),
                effect=effect, gradient=state.gradients[t, m].item(),
            )
            for (t, m), effect in zip(places.tolist(), effects.tolist(), strict=True)
        ),
        gradients={"features": sums[:k].sum().item()}
        | {name: sums[k + m].item() for m, name in enumerate(REMAINDERS)},
    )  # fmt: skip


def _value(network: Network, f: Tensor, index: int, inputs: Tensor, target: int) -> Tensor:
    """The target from activations [n, T, width] of a node layer, [n]."""
    for section in network.sections[index:]:
        f = section(f)
    logits = network.output_from(f, inputs.expand(len(f), -1))[:, -1]
    return logits[:, target] - logits.mean(-1)


def _state(
    network: Network,
    layer: DictionaryLayer,
    baseline: Tensor,
    activations: list[Tensor],
    inputs: Tensor,
    target: int,
    *,
    counted: CountedTokens,
) -> _State:
    f = activations[layer.source_index]
    counts = counted.at(layer.source_index, network.nodes[layer.source_index], f)[0]
    with torch.enable_grad():
        at = f.clone().requires_grad_()
        (slope,) = torch.autograd.grad(_value(network, at, layer.source_index, inputs, target), at)
    with torch.no_grad():
        before = activations[layer.index]
        batch = layer.encode(before)
        vectors = layer.split(batch, before, f)[0]
        active = ActiveFeatures(batch.indices[0], batch.values[0], batch.real[0])
        absent = baseline.to(f)[active.indices] * active.real  # [T, k]
        moved = layer.dictionary.decoder[active.indices] * absent[..., None]
        vectors[:, : moved.shape[1], layer.source_columns] -= moved
        vectors[:, -1, layer.source_columns] += moved.sum(1)  # the constant
        k = active.indices.shape[1]
        vectors[~counts, k] += vectors[~counts, :k].sum(1)  # the error
        vectors[~counts, :k] = 0
    return _State(layer, f[0], active.at(counts), vectors, slope[0])


@torch.no_grad()
def _strongest(
    network: Network, state: _State, inputs: Tensor, target: int
) -> tuple[Tensor, Tensor]:  # [nodes, 2]: position, place among the active features; [nodes]
    """The nodes with the largest measured effects, and these."""
    first_order = (state.gradients[:, : state.active.indices.shape[1]] * state.active.real).abs()
    if not state.active.real.any():
        return torch.empty(0, 2, dtype=torch.int64), torch.empty(0)
    likely = first_order.flatten().argsort(descending=True)[: min(MAX_MEASURED, int(state.active.real.sum()))]
    places = torch.stack([likely // first_order.shape[1], likely % first_order.shape[1]], dim=1)
    index = state.layer.source_index
    whole = _value(network, state.f[None], index, inputs, target)
    effects = torch.cat([
        whole - _value(network, changed, index, inputs, target) for changed in _without(state, places)
    ])  # fmt: skip
    order = effects.abs().argsort(descending=True)
    covered = effects[order].abs().cumsum(0)
    kept = order[: min(MAX_NODES, int((covered < NODE_SHARE * covered[-1]).sum()) + 1)]
    return places[kept], effects[kept]


def _without(state: _State, places: Tensor) -> Iterator[Tensor]:  # [n, T, width]
    """Activations without one vector each, some of them at a time."""
    for some in places.split(max(1, MAX_ELEMENTS // (8 * state.f.numel()))):
        changed = state.f.expand(len(some), -1, -1).clone()
        changed[torch.arange(len(some)), some[:, 0]] -= state.vectors[some[:, 0], some[:, 1]]
        yield changed


@torch.no_grad()
def _edges(
    network: Network,
    activations: list[Tensor],
    before: _State,
    sources: Tensor,
    after: _State,
    targets: Tensor,
) -> tuple[DictionaryEdge, ...]:
    """The strongest edges into every target node from the source nodes."""
    sections = (*network.sections[before.layer.source_index : after.layer.index], *after.layer.through)
    chain = Chain(sections, rule("gradient"))
    first = before.layer.source_index
    inner = [activations[k][0] for k in range(first, first + len(sections) + 1)]
    edges = []
    pushed = chain.push(inner, before.vectors) if chain.mixes_positions else None
    t, m = sources.T
    for number, (position, place) in enumerate(targets.tolist()):
        rows = after.layer.rows(after.active.indices[position, place])[None, None]
        at = torch.tensor([position], device=rows.device)
        if pushed is None:
            A = chain.attributions_at_tokens([f[at] for f in inner], before.vectors[at], rows)[0, 0]
            values, by_path = torch.where(t == position, A[m], 0.0), None
        else:
            paths = chain.paths(inner, pushed, rows, at)
            by_path = {
                name: torch.where(t == position, part[0, 0][m], 0.0)
                if name in ("skip", "query")
                else torch.where(t < len(part), part[t.clamp_max(len(part) - 1), m, 0], 0.0)
                for name, part in paths.items()
            }
            values = sum(by_path.values(), torch.zeros_like(next(iter(by_path.values()))))
        for k in values.abs().argsort(descending=True)[:MAX_EDGES_INTO].tolist():
            if values[k] == 0:
                break
            named = None if by_path is None else {name: part[k].item() for name, part in by_path.items()}
            edges.append(DictionaryEdge(source=k, target=number, value=values[k].item(), paths=named))
    for k in sorted(range(len(edges)), key=lambda k: -abs(edges[k].value))[:CHECKED_EDGES]:
        (changed,) = _without(before, sources[edges[k].source][None])
        position, place = targets[edges[k].target].tolist()
        row = after.layer.rows(after.active.indices[position, place])
        lost = row @ (inner[-1] - chain.activations(changed)[-1][0])[position]
        edges[k] = edges[k].model_copy(update={"measured": lost.item()})
    return tuple(edges)


def agreement(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Share of predictions with the sign of the measurement, and Spearman's correlation; nan for none."""
    x, y = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2).T
    return (x.sign() == y.sign()).double().mean().item(), spearman(x, y)


def spearman(x: Tensor, y: Tensor) -> float:
    """Spearman's rank correlation; nan for fewer than 3 pairs."""
    from scipy.stats import spearmanr

    return float(spearmanr(x.numpy(), y.numpy()).statistic) if len(x) > 2 else float("nan")
