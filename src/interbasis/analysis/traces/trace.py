"""From one input to its graph: run, walk back, prune, check."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.analysis.traces.assemble import TracedLayer, assemble
from interbasis.analysis.traces.checks import Interventions
from interbasis.analysis.traces.records import Trace, TraceSettings
from interbasis.analysis.traces.rows import GradientEdges, IncomingEdges, LayerState, NodeSet, edges_into
from interbasis.analysis.traces.slopes import target_gradients
from interbasis.analysis.traces.targets import TargetRequest, resolve
from interbasis.analysis.traces.walk import prune, walk
from interbasis.base.errors import InterbasisError
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.lib.counted_tokens import CountedTokens
from interbasis.network.network import Network
from interbasis.numerics.integration import Rule, rule


def trace(
    network: Network,
    graph: InteractionGraph,
    inputs: Tensor,
    target: TargetRequest | None = None,
    *,
    settings: TraceSettings | None = None,
    names: Sequence[str] | None = None,
) -> Trace:
    """Trace one computation: which features, at which positions, contributed to an output.

    Args:
        network: The network that the graph was built for.
        graph: A graph; only its bases are used.
        inputs: One sample: tokens [positions], or one row of numbers.
        target: Output or feature to explain; default: the largest output at the last position.
        settings: Method, pruning, checks.
        names: Names of tokens or outputs; default: their numbers.

    Returns:
        Nodes, signed edges, scores, and predictions beside what was measured.

    Raises:
        InterbasisError: The inputs are not one sample, the graph belongs to another network, or there is no
            such target.
    """
    settings = settings or TraceSettings()
    computation = Computation.from_inputs(network, graph, inputs)
    return Tracing(computation, target or TargetRequest(), settings, names).result()


@dataclass(frozen=True, eq=False)
class Computation:
    """A network at one input: the activations of every node layer, with their bases."""

    network: Network
    graph: InteractionGraph
    inputs: Tensor
    states: list[LayerState]

    @classmethod
    @torch.no_grad()
    def from_inputs(cls, network: Network, graph: InteractionGraph, inputs: Tensor) -> "Computation":
        """Run the network once, in the dtype of the build."""
        if network.layers != graph.layer_names:
            network = network.between(graph.layer_names)
        network = network.to(graph.config.torch_dtype)
        graph = replace(graph, layers=graph.centred_layers())
        batch = torch.as_tensor(inputs, device=network.device)[None]
        image = batch.ndim > 2 and batch.is_floating_point()
        activations = network.activations(batch) if batch.numel() and (image or batch.ndim == 2) else []
        positions = activations[0].shape[1] if activations else 0
        if not positions or (image and positions > 1):
            raise InterbasisError(
                "expected one sample: tokens [positions], a row of numbers or, if the network flattens it, "
                f"an image; received a tensor of shape {list(batch.shape[1:])}"
            )
        counted = CountedTokens.from_layers(network, graph.layers)
        states = [
            LayerState(basis, f[0], positions - f.shape[1], ~counted.at(k, network.nodes[k], f)[0])
            for k, (basis, f) in enumerate(zip(graph.layers, activations, strict=True))
        ]
        return cls(network, graph, batch[0], states)

    @property
    def positions(self) -> int:
        return len(self.states[0].f)


class Tracing:
    """One target of a computation."""

    def __init__(
        self,
        computation: Computation,
        request: TargetRequest,
        settings: TraceSettings,
        names: Sequence[str] | None,
    ):
        self.computation, self.settings, self.names = computation, settings, names
        self.network, self.states = computation.network, computation.states
        self.rule: Rule = rule(settings.method, settings.quadrature)
        last = self.states[-1].f
        self.target = resolve(self.network, computation.graph, request, last, computation.positions)

    @property
    def interventions(self) -> Interventions:
        """Interventions on its nodes, whose effects are compared with the predicted ones."""
        return Interventions(self.network, self.states, self.target, self.settings.effect_points)

    @torch.no_grad()
    def result(self) -> Trace:
        """Walk back from the target, prune, check."""
        settings = self.settings
        states, incoming = self._start()
        steps = list(walk(self.network.sections, states, incoming, self.rule, settings.max_nodes))
        masks = prune(steps, settings.node_threshold, settings.edge_threshold)
        slopes = dict(target_gradients(self.network, self.target, self.states))
        layers = []
        for step, mask in zip(steps, masks, strict=True):
            state, slope, nodes = states[step.layer], slopes[step.layer], step.nodes
            effects = state.on_features(slope)[nodes.positions, nodes.features]
            effects *= state.features[nodes.positions, nodes.features]
            layers.append(TracedLayer(step, state, mask, effects, (slope * state.dropped).sum(1)))
        return assemble(self, layers)

    def _start(self) -> tuple[list[LayerState], IncomingEdges]:
        """The layers before the target, and the edges into it."""
        target, index = self.target, self.target.index
        state = self.states[index]
        if target.basis is None:
            row = target.row(state.f, state.first, self.rule)
            return self.states, GradientEdges(state, lambda: iter([(slice(0, 1), row[None])]))
        position = target.position - state.first
        if position < 0:
            raise InterbasisError(
                f"{target.basis.name} has positions from {state.first} on, received {target.position}"
            )
        node = NodeSet(torch.tensor([target.feature]), torch.tensor([position]))
        section, source = self.network.sections[index - 1], self.states[index - 1]
        return self.states[:index], edges_into(section, source, state, node, self.rule)
