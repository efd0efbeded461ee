"""From one input to its graph: run, walk back, prune, check."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.analysis.traces.assemble import Assembled
from interbasis.analysis.traces.checks import Interventions
from interbasis.analysis.traces.pruning import prune
from interbasis.analysis.traces.records import Trace, TraceSettings
from interbasis.analysis.traces.rows import LayerState, LinearRow, Places, Rows, rows_into
from interbasis.analysis.traces.slopes import target_gradients
from interbasis.analysis.traces.targets import TargetRequest, resolve
from interbasis.analysis.traces.walk import walk
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
    """The graph of one computation: which features, where, made an output what it is.

    Args:
        network: The network that the graph was built for.
        graph: A graph; only its bases are used.
        inputs: One sample: tokens [positions], or one row of numbers.
        target: What to explain; default: the largest output at the last position.
        settings: Method, pruning, checks.
        names: What tokens or outputs are called; default: their numbers.

    Returns:
        Nodes, signed edges, scores, and predictions beside what was measured.

    Raises:
        InterbasisError: The inputs are not one sample, the graph belongs to another network, or there is no
            such target.
    """
    settings = settings or TraceSettings()
    computation = Computation.of(network, graph, inputs)
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
    def of(cls, network: Network, graph: InteractionGraph, inputs: Tensor) -> "Computation":
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
        counted = CountedTokens.of_graph(network, graph)
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
        """Changes of its nodes, to be compared with what is predicted."""
        return Interventions(self.network, self.states, self.target, self.settings.effect_points)

    @torch.no_grad()
    def result(self) -> Trace:
        """The walk, pruned and checked."""
        used, rows = self._start()
        steps = list(walk(self.network.sections, used, rows, self.rule, self.settings.max_nodes))
        kept = prune(steps, self.settings.node_threshold, self.settings.edge_threshold)
        by_layer = {step.layer: step for step in steps}
        effects = [
            self._effects(used[layer], by_layer[layer].nodes, slope)
            for layer, slope in target_gradients(self.network, self.target, self.states)
            if layer in by_layer  # a feature is not a node of its own trace
        ]
        return Assembled(self, used, steps, effects, kept).trace()

    def _start(self) -> tuple[list[LayerState], Rows]:
        """The layers that the target is made of, and the edges into it."""
        target, index = self.target, self.target.index
        if target.basis is None:
            state = self.states[index]
            row = target.row(state.f, state.first, self.rule)
            return self.states, LinearRow(state, row)
        section, source, own = self.network.sections[index - 1], self.states[index - 1], self.states[index]
        place = target.position - own.first
        if place < 0:
            raise InterbasisError(
                f"{target.basis.name} has positions from {own.first} on, received {target.position}"
            )
        node = Places(torch.tensor([target.feature]), torch.tensor([place]))
        rows = rows_into(section, source, own, node, self.rule)
        return self.states[:index], rows

    @staticmethod
    def _effects(state: LayerState, nodes: Places, slope: Tensor) -> tuple[Tensor, Tensor]:
        """f̂ × slope of nodes [K], and of what was dropped at every position [T]."""
        effects = state.directions(slope)[nodes.positions, nodes.features]
        effects *= state.features[nodes.positions, nodes.features]
        return effects, (slope * state.dropped).sum(1)
