"""From one input to its graph: run, walk back, prune, check."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from interbasis.analysis.traces import checks, records
from interbasis.analysis.traces.rows import IncomingEdges, LayerState, NodeSet, edges_into
from interbasis.analysis.traces.targets import TargetRequest, resolve
from interbasis.analysis.traces.walk import WalkStep, prune, walk
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network
from interbasis.numerics.integration import rule

OUTPUTS_SHOWN = 10
"""Largest outputs at the target's position."""
MAX_LISTED_POSITIONS = 256
"""Positions of vectors or pixels up to which those without influence are listed too."""


def trace(
    network: Network,
    graph: InteractionGraph,
    inputs: Tensor,
    target: TargetRequest | None = None,
    *,
    settings: records.TraceSettings | None = None,
    names: Sequence[str] | None = None,
) -> records.Trace:
    """Trace one computation: which features, at which positions, contributed to an output.

    Args:
        network: The network that the graph was built for.
        graph: A graph; only its bases are used.
        inputs: One sample: tokens [positions], a row of numbers, vectors [positions, width], or an image.
        target: Output or feature to explain; default: the largest output at the last position.
        settings: Method, pruning, checks.
        names: Names of tokens or outputs; default: their numbers.

    Returns:
        Nodes, signed edges, scores, and predictions beside what was measured.

    Raises:
        InterbasisError: The inputs are not one sample, the graph belongs to another network, or there is no
            such target.
    """
    return Tracing(network, graph, inputs, target, settings, names).result()


@dataclass(frozen=True, eq=False)
class TracedLayer:
    """A step of the walk with the layer's state, the edges that pruning left, and effects."""

    step: WalkStep
    state: LayerState
    kept: Tensor  # [k, K + T] bool: edges from the nodes, then from the dropped directions
    effects: Tensor  # [K] of the nodes
    error_effects: Tensor  # [T] of the dropped directions

    @property
    def name(self) -> str:
        return self.state.basis.name

    def kept_sources(self) -> tuple[list[int], list[int]]:
        """Nodes, and positions of dropped directions, that an edge leads on from."""
        nodes, errors = self.kept.any(0).split([len(self.effects), len(self.error_effects)])
        return nodes.nonzero()[:, 0].tolist(), errors.nonzero()[:, 0].tolist()

    def node(self, k: int) -> str:
        """Name of the k-th source of edges: a node or, after all nodes, the dropped directions."""
        nodes, first = self.step.nodes, self.state.first
        if k >= len(nodes):
            return records.error_name(self.name, k - len(nodes) + first)
        return records.node_name(self.name, int(nodes.features[k]), int(nodes.positions[k]) + first)


class Tracing:
    """A network at one input: the activations of every node layer with their bases, and the target."""

    @torch.no_grad()
    def __init__(
        self,
        network: Network,
        graph: InteractionGraph,
        inputs: Tensor,
        request: TargetRequest | None = None,
        settings: records.TraceSettings | None = None,
        names: Sequence[str] | None = None,
    ):
        """Run the network once, in the dtype of the build; arguments as for `trace`."""
        self.settings, self.names = settings or records.TraceSettings(), names
        if network.layers != graph.layer_names:
            network = network.between(graph.layer_names)
        self.network = network = network.to(graph.config.torch_dtype)
        graph = replace(graph, layers=graph.centred_layers())
        batch = torch.as_tensor(inputs, device=network.device)[None]
        if not batch.numel() or batch.ndim < 2 or (batch.ndim > 2 and not batch.is_floating_point()):
            raise InterbasisError(
                "expected one sample: tokens [positions], a row of numbers, vectors [positions, width] or an "
                f"image; received a tensor of shape {list(batch.shape[1:])}"
            )
        activations = network.activations(batch)
        counted, self.inputs = CountedTokens.from_layers(network, graph.layers), batch[0]
        self.states = []
        for k, (basis, f) in enumerate(zip(graph.layers, activations, strict=True)):
            node = network.nodes[k]
            # a sequence's last positions may be all that is left of it; a grid has positions of its own
            first = 0 if node.grid is not None else activations[0].shape[1] - f.shape[1]
            self.states.append(LayerState(basis, f[0], first, ~counted.at(k, node, f)[0]))
        self.rule = rule(self.settings.method, self.settings.quadrature)
        self.target = resolve(network, graph, request or TargetRequest(), self.states)

    @torch.no_grad()
    def result(self) -> records.Trace:
        """Walk back from the target, prune, check."""
        settings, states = self.settings, self.states[: self.target.index + (self.target.basis is None)]
        steps = list(walk(self.network, states, self._into_target(), self.rule, settings.max_nodes))
        masks = prune(steps, settings.node_threshold, settings.edge_threshold)
        slopes = dict(checks.target_gradients(self.network, self.target, self.states))
        layers = []
        for step, mask in zip(steps, masks, strict=True):
            state, slope, nodes = states[step.layer], slopes[step.layer], step.nodes
            effects = state.on_features(slope)[nodes.positions, nodes.features]
            effects *= state.features[nodes.positions, nodes.features]
            layers.append(TracedLayer(step, state, mask, effects, (slope * state.dropped).sum(1)))
        return self._assembled(layers)

    def _into_target(self) -> IncomingEdges:
        """The edges into the target."""
        target, index = self.target, self.target.index
        state = self.states[index]
        if target.basis is None:
            row = target.row(state.f, self.rule)
            return IncomingEdges(state, lambda: [(slice(0, 1), row[None])])
        node = NodeSet(torch.tensor([target.feature]), torch.tensor([target.place]))
        return edges_into(self.network.sections[index - 1], self.states[index - 1], state, node, self.rule)

    def _assembled(self, layers: list[TracedLayer]) -> records.Trace:
        """All records; layers run from the target to the first."""
        nodes, tokens = tuple(_nodes(layers)), tuple(self._tokens(layers[-1].step))
        target = self._target(layers[0].step)
        checks = self._checks(layers, nodes) if self.settings.checks else None
        return records.Trace(
            summary=_summary(self._title(target), checks),
            prompt="".join(token.text for token in tokens if token.token is not None),
            settings=self.settings,
            tokens=tokens,
            outputs=self._outputs(),
            target=target,
            layers=tuple(
                records.LayerTrace(
                    name=layer.name,
                    coverage=layer.step.coverage,
                    error_share=layer.step.errors.sum().item(),
                    selected=len(layer.step.nodes),
                    grid=self.network.nodes[layer.step.layer].grid,
                )
                for layer in reversed(layers)
            ),
            nodes=nodes,
            errors=tuple(_errors(layers)),
            edges=tuple(_edges(layers)),
            scores=_scores(layers),
            checks=checks,
        )

    def _title(self, target: records.TraceTarget) -> str:
        """The target and, where its layer has several positions, which of them."""
        grid, state = self.network.nodes[self.target.index].grid, self.states[self.target.index]
        if state.first + len(state.f) == 1:
            return target.name
        return f"{target.name} at position {records.place_name(target.position, grid)}"

    def _name(self, index: int) -> str:
        """Name of a token or an output."""
        return str(index) if self.names is None else self.names[index]

    def _target(self, step: WalkStep) -> records.TraceTarget:
        target, state = self.target, self.states[self.target.index]
        basis = target.basis
        return records.TraceTarget(
            name=target.label(self._name),
            kind="feature" if basis else "logit" if target.minus is None else "difference",
            position=target.position,
            value=target.value(state.f[None]).item(),
            constant=step.constants[0].item(),
            output=None if basis else target.output,
            minus=target.minus,
            layer=basis.name if basis else None,
            feature=target.feature if basis else None,
        )

    def _tokens(self, first: WalkStep) -> Iterator[records.TraceToken]:
        influence = first.influence.new_zeros(len(self.states[0].f))
        influence.index_add_(0, first.nodes.positions, first.influence)
        grid = self.network.nodes[0].grid
        for position, share in enumerate(influence.tolist()):
            if not self.inputs.is_floating_point():
                token = int(self.inputs[position])
                text = self._name(token)
                yield records.TraceToken(position=position, token=token, text=text, influence=share)
            elif share or len(influence) <= MAX_LISTED_POSITIONS:  # of many pixels those that matter
                text = records.place_name(position, grid)
                yield records.TraceToken(position=position, token=None, text=text, influence=share)

    def _outputs(self) -> tuple[records.TraceOutput, ...]:
        last, target = self.states[-1], self.target
        if target.position < last.first:
            return ()
        if target.basis is not None:  # outputs at its position, or at the last that they have
            place = min(target.position - last.first, len(last.f) - 1)
            target = replace(target, basis=None, place=place)
        logits = target.outputs(last.f[None])[0]
        shares, top = logits.double().softmax(0), logits.topk(min(OUTPUTS_SHOWN, len(logits)))
        return tuple(
            records.TraceOutput(index=i, name=self._name(i), logit=logit, probability=shares[i].item())
            for i, logit in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        )

    def _checks(self, layers: list[TracedLayer], nodes: tuple[records.TraceNode, ...]) -> records.TraceChecks:
        count, best = self.settings.checks, checks.strongest(nodes, self.settings.checks)
        run = checks.Interventions(self.network, self.states, self.target, self.settings.effect_points)
        strongest, sampled = run.to_the_mean(best), run.to_the_mean(checks.spread(nodes, count))
        other = run.to_other_values(best)
        edges = run.through_one_section(_strongest_edges(layers, nodes, count))
        measured = [check.measured for check in strongest]
        return records.TraceChecks(
            nodes=strongest,
            spread=sampled,
            other_values=other,
            edges=edges,
            node_agreement=checks.check_agreement(strongest),
            gradient_agreement=checks.agreement([-node.effect for node in best], measured),
            spread_agreement=checks.check_agreement(sampled),
            other_agreement=checks.check_agreement(other),
            edge_agreement=checks.check_agreement(edges),
        )


def _nodes(layers: list[TracedLayer]) -> Iterator[records.TraceNode]:
    """In the order of layers, positions and features."""
    for number, layer in reversed(list(enumerate(layers))):
        step, state = layer.step, layer.state
        # the edge from the constant into a node belongs to the step to the layer before it
        constants = layers[number + 1].step.constants if number + 1 < len(layers) else None
        for k in layer.kept_sources()[0]:
            j, t = int(step.nodes.features[k]), int(step.nodes.positions[k])
            yield records.TraceNode(
                name=layer.node(k),
                layer=layer.name,
                feature=j,
                position=t + state.first,
                activation=state.features[t, j].item(),
                influence=step.influence[k].item(),
                effect=layer.effects[k].item(),
                constant=0.0 if constants is None else constants[k].item(),
            )


def _errors(layers: list[TracedLayer]) -> Iterator[records.ErrorNode]:
    for layer in reversed(layers):
        for t in layer.kept_sources()[1]:
            yield records.ErrorNode(
                name=records.error_name(layer.name, t + layer.state.first),
                layer=layer.name,
                position=t + layer.state.first,
                whole=bool(layer.state.whole[t]),
                influence=layer.step.errors[t].item(),
                effect=layer.error_effects[t].item(),
            )


def _edges(layers: list[TracedLayer]) -> Iterator[records.TraceEdge]:
    for number, layer in reversed(list(enumerate(layers))):
        step, paths = layer.step, layer.step.edges.paths
        weights = torch.cat([step.edges.total, step.error_edges], dim=1)
        for k, c in layer.kept.nonzero().tolist():
            parts = None
            if paths is not None and c < len(step.nodes):
                parts = records.AttentionPaths(**{name: part[k, c].item() for name, part in paths.items()})
            yield records.TraceEdge(
                source=layer.node(c),
                target=records.TARGET if number == 0 else layers[number - 1].node(k),
                weight=weights[k, c].item(),
                share=step.shares[k, c].item(),
                paths=parts,
            )


def _scores(layers: list[TracedLayer]) -> records.TraceScores:
    steps = [layer.step for layer in layers]
    tokens = steps[-1].influence.sum().item()
    errors = sum(step.errors.sum().item() for step in steps)
    weights = [steps[0].influence.new_ones(1), *(step.influence for step in steps[:-1])]
    through = sum(  # what comes into each node from features
        (weight * step.shares[:, : len(step.nodes)].sum(1)).sum().item()
        for weight, step in zip(weights, steps, strict=True)
    )
    ends = tokens + errors  # nothing comes into them, so no error does
    return records.TraceScores(
        replacement=tokens / ends if ends else 0.0,
        completeness=(through + ends) / (sum(weight.sum().item() for weight in weights) + ends),
        error_share=errors,
        whole_share=sum(layer.step.errors[layer.state.whole].sum().item() for layer in layers),
        coverage=min(step.coverage for step in steps),
    )


def _strongest_edges(
    layers: list[TracedLayer], nodes: tuple[records.TraceNode, ...], count: int
) -> list[tuple[records.TraceNode, records.TraceNode, float]]:
    """(source, target, weight) of the edges with most influence between nodes that pruning left."""
    named, edges = {node.name: node for node in nodes}, []
    for after, layer in pairwise(layers):
        within = layer.kept[:, : len(layer.effects)]
        strength = after.step.influence[:, None] * layer.step.shares[:, : len(layer.effects)]
        for k, c in within.nonzero().tolist():
            ends = named[layer.node(c)], named[after.node(k)]
            edges.append((strength[k, c].item(), (*ends, layer.step.edges.total[k, c].item())))
    return [edge for _, edge in sorted(edges, key=lambda pair: -pair[0])[:count]]


def _summary(title: str, checks: records.TraceChecks | None) -> str:
    """The first line: the target, and whether predictions held."""
    if checks is None:
        return f"{title}: not checked by interventions."
    best, sampled = checks.node_agreement, checks.spread_agreement
    figures = (
        f"{best.sign_agreement:.0%} of the {best.count} strongest nodes change it in the predicted direction "
        f"when set to their mean, rank correlation {sampled.rank_correlation:.2f} over {sampled.count} nodes "
        "of all sizes"
    )
    if records.predictions_hold(checks):
        return f"{title}: predictions hold; {figures}."
    return f"{title}: predictions FAIL, do not rely on this trace; {figures}."
