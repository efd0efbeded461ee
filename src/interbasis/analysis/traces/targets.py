"""Target of a trace: an output of the model, the difference of two, or a feature, at one position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasis.analysis.features.activations import outputs_from
from interbasis.analysis.traces.rows import LayerState, line_gradient
from interbasis.base.errors import InterbasisError
from interbasis.base.records import Record
from interbasis.graph.interaction_graph import InteractionGraph
from interbasis.graph.layer_basis import LayerBasis
from interbasis.network.hooks import layer_name
from interbasis.network.network import Network, Section
from interbasis.numerics.integration import Rule


class TargetRequest(Record):
    """Request for a target; default: the largest output at the last position."""

    output: int | None = None
    """A token or class: its logit, counted from the mean of all logits."""
    minus: int | None = None
    """Another token or class, whose logit is taken away instead of the mean."""
    layer: str | None = None
    """A node layer, by our name or TransformerLens', for one of its features."""
    feature: int | None = None
    position: int = -1
    """Position in a sequence, or on the layer's grid, row by row; −1 is the last."""


@dataclass(frozen=True, eq=False)
class Target:
    """A number computed from the activations of a node layer."""

    network: Network
    index: int
    """The node layer that it is read from."""
    position: int
    """Position in the sequence, or on the layer's grid."""
    place: int
    """The row of the layer's activations that it stands for."""
    basis: LayerBasis | None = None
    feature: int = 0
    output: int = 0
    minus: int | None = None

    def value(self, f: Tensor) -> Tensor:  # [n, T, width] -> [n]
        """Its value for these activations of its layer."""
        if self.basis is not None:
            return f[:, self.place] @ self.basis.rows([self.feature])[0].to(f)
        outputs = self.outputs(f)
        return outputs[:, self.output] - (outputs.mean(1) if self.minus is None else outputs[:, self.minus])

    def row(self, f: Tensor, rule: Rule) -> Tensor:  # [T, width] -> [T, width]
        """∫dα of its gradient at α f."""
        return line_gradient(lambda at: self.value(at[None])[0], f, rule)

    def outputs(self, f: Tensor) -> Tensor:  # [n, T, width] of the last node layer -> [n, outputs]
        """The model's outputs at its position."""
        tail, place = self.network.tail, self.place
        sections = [step for step in tail if isinstance(step, Section)]
        if all(step.reads_per_position and not step.last_only for step in tail) and not any(
            section.core.mixes_positions for section in sections
        ):
            f, place = f[:, place : place + 1], 0
        outputs = outputs_from(self.network, len(self.network.sections), f)
        return outputs[:, place if outputs.shape[1] > place else -1]

    def label(self, name: Callable[[int], str]) -> str:
        """Text for people: a feature's name, or outputs in quotes, each by its ``name``."""
        if self.basis is not None:
            return f"{self.basis.name}:{self.feature}"
        return " − ".join(f"“{name(i)}”" for i in (self.output, self.minus) if i is not None)


def resolve(
    network: Network, graph: InteractionGraph, request: TargetRequest, states: Sequence[LayerState]
) -> Target:
    """Return the target that a request names, given the state of every node layer.

    Raises:
        InterbasisError: There is no such output, layer, feature or position.
    """
    if request.layer is not None or request.feature is not None:
        return _feature(network, graph, request, states)
    last = states[-1]
    target = Target(network, len(network.sections), *_position(request, last))
    with torch.no_grad():
        outputs = target.outputs(last.f[None])[0]
    for name, index in (("output", request.output), ("minus", request.minus)):
        if index is not None and not 0 <= index < len(outputs):
            raise InterbasisError(f"expected {name} from 0 to {len(outputs) - 1}, received {index}")
    output = int(outputs.argmax()) if request.output is None else request.output
    return replace(target, output=output, minus=request.minus)


def _position(request: TargetRequest, state: LayerState) -> tuple[int, int]:
    """(position, row of the layer's activations) that a request names."""
    end = state.first + len(state.f)
    position = request.position + end if request.position < 0 else request.position
    if not 0 <= position < end:
        raise InterbasisError(f"expected a position from {-end} to {end - 1}, received {request.position}")
    if position < state.first:
        raise InterbasisError(
            f"{state.basis.name} has positions from {state.first} on, received {request.position}"
        )
    return position, position - state.first


def _feature(
    network: Network, graph: InteractionGraph, request: TargetRequest, states: Sequence[LayerState]
) -> Target:
    names, feature = graph.layer_names, request.feature
    layer = None if request.layer is None else layer_name(request.layer, names)
    outputs = request.output, request.minus
    if layer is None or layer not in names[1:] or feature is None or outputs != (None, None):
        raise InterbasisError(
            f"a feature is named by its layer, one of {', '.join(names[1:])}, and its number, without an "
            f"output; received layer {request.layer!r}, feature {feature}"
        )
    index = names.index(layer)
    basis = graph.layers[index]
    if not 0 <= feature < basis.features:
        raise InterbasisError(f"{layer!r} has features 0 to {basis.features - 1}, received {feature}")
    return Target(network, index, *_position(request, states[index]), basis=basis, feature=feature)
